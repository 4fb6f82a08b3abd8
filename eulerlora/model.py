"""`EulerLoRA`: a checkpoint on a device, ready to predict; and the choice of its precision."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from eulerlora.answer import Predictions, RunOptions, answer
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, Checkpoint, load_checkpoint
from eulerlora.checkpoint.hub import Repository, download, upload
from eulerlora.images.decode import RgbImage, channels_first, upright_rgb
from eulerlora.images.files import read_image, unread_file
from eulerlora.images.preprocess import content_seed, network_input
from eulerlora.nn.network import AdaptedVisionTransformer, NetworkOutput, predict_images
from eulerlora.nn.runtime import Runtime, predict_adaptively
from eulerlora.sampling.adaptive import ROUNDS
from eulerlora.settings import DEFAULT_RUNTIME, Draw, RuntimeSettings
from eulerlora_contract.answers import PredictionWarning
from eulerlora_contract.errors import ImageError, SettingsError
from eulerlora_contract.sampling import (
    AUTO,
    DEFAULT_SAMPLES,
    Auto,
    Mode,
    Precision,
    PrecisionChoice,
    Sampler,
    Views,
)
from eulerlora_contract.settings import validated

RgbArray = npt.NDArray[np.uint8]
"""(height, width, 3), RGB."""

Images = Tensor | RgbArray | Iterable[Image.Image | Path | str | RgbArray]

SLOW_KERNELS = ("DEFAULT", "NO AVX", "AVX2")
"""Kernels of torch without bfloat16, which ATEN_CPU_CAPABILITY can select on any CPU."""
REQUESTED = "set by the user"

MAX_BATCH_IMAGES = 32
"""Limits the memory of a batch on a device without a limit of rows per pass."""


class EulerLoRA:
    """A model on a device, ready to predict.

    Attributes:
        classes: The class names, in the order of the probabilities.
        precision: Of the matrix products.
        precision_reason: Why it was chosen.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        runtime: RuntimeSettings = DEFAULT_RUNTIME,
        precision_reason: str = REQUESTED,
    ) -> None:
        self.runtime: Runtime = Runtime(checkpoint.network, device, runtime)
        self.config = checkpoint.config.in_precision(runtime.precision)
        self.revision: str = checkpoint.revision
        self.feature_distance = checkpoint.feature_distance
        self.folder: Path | None = checkpoint.folder
        self.device = device
        self.precision: Precision = runtime.precision
        self.precision_reason = precision_reason
        self.classes: tuple[str, ...] = checkpoint.config.class_names

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: str = "auto",
        precision: PrecisionChoice = "float32",
        compiler: str | None = None,
    ) -> Self:
        """Returns the model in a checkpoint folder, on `device`.

        Precision and compiler change results by rounding only.

        Args:
            folder: With `config.json`, weights and known answer.
            device: A torch device, or `auto` for CUDA if available and the CPU otherwise.
            precision: As in `RuntimeSettings`; `auto` is decided by `decide_precision`.
            compiler: As in `RuntimeSettings`.

        Raises:
            CheckpointError: If the checkpoint is not intact.
        """
        return cls.of(load_checkpoint(Path(folder)), device, precision, compiler)

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        device: str = "auto",
        precision: PrecisionChoice = "float32",
        compiler: str | None = None,
    ) -> Self:
        """Returns the model of a loaded checkpoint; other arguments as in `load`."""
        chosen = choose_device(device)
        decision = decide_precision(precision, checkpoint, chosen)
        runtime = RuntimeSettings(precision=decision.precision, compiler=compiler)
        return cls(checkpoint, chosen, runtime, decision.reason)

    @classmethod
    def default(
        cls,
        device: str = "auto",
        precision: PrecisionChoice = "float32",
        compiler: str | None = None,
    ) -> Self:
        """Returns the model of the packaged checkpoint; arguments as in `load`."""
        return cls.load(DEFAULT_CHECKPOINT, device, precision, compiler)

    @classmethod
    def from_pretrained(
        cls,
        repository: str,
        revision: str | None = None,
        device: str = "auto",
        precision: PrecisionChoice = "float32",
        compiler: str | None = None,
    ) -> Self:
        """Returns the model of a repository of the Hugging Face Hub; needs the extra `hub`.

        Raises HubError and CheckpointError.

        Args:
            repository: ORGANISATION/NAME, or a checkpoint folder.
            revision: A branch, a tag or a commit.
            device: As in `load`.
            precision: As in `load`.
            compiler: As in `load`.
        """
        folder = Path(repository)
        if not folder.is_dir():
            folder = download(Repository(repository, revision)).folder
        return cls.load(folder, device, precision, compiler)

    def push_to_hub(self, repository: str, private: bool | None = None, **options: Any) -> str:
        """Uploads the model's checkpoint to a repository of the Hugging Face Hub.

        Args:
            repository: ORGANISATION/NAME, created if it does not exist.
            private: Of a new repository.
            options: Of huggingface_hub's `HfApi.upload_folder`, such as `commit_message`, and
                `token`.

        Returns:
            The URL of the commit.

        Raises:
            HubError: For another form of name, and if the Hub refuses the upload or cannot be
                reached.
            SettingsError: For a model without a folder.
        """
        if self.folder is None:
            raise SettingsError("expected a model that was loaded from a folder")
        return upload(self.folder, Repository(repository), private, **options)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(name={self.config.name!r}, revision={self.revision[:19]!r}, "
            f"classes={self.classes}, adapters={self.network.settings.adapters}, "
            f"device={str(self.device)!r}, precision={self.precision!r})"
        )

    @property
    def network(self) -> AdaptedVisionTransformer:
        """The network that the runtime runs."""
        return self.runtime.network

    def predict(
        self,
        images: Images,
        mode: Mode = "det",
        samples: int | Auto | None = None,
        seed: int | None = None,
        batch_size: int | None = None,
        sampler: Sampler | None = None,
        coverage: float | None = None,
        views: Views | None = None,
    ) -> Predictions:
        """Returns class probabilities and uncertainty of every image.

        Args:
            images: PIL images, paths or NumPy arrays (height, width, 3), uint8 in RGB; or an array
                (n, height, width, 3); or a floating-point tensor (n, 3, height, width) in [0, 1],
                without the normalisation of the backbone. Each is read when its batch runs.
            mode: `det`, one pass per adapter; or `stoch`, sampled.
            samples: S per adapter, only in mode `stoch`; `auto` takes 1, 2 or 4 of them, until the
                label and flags are settled, for a checkpoint with decision margins; None for
                `DEFAULT_SAMPLES`.
            seed: Of the draws of every image; None derives one from the image and the model's
                weights and sampler.
            batch_size: Images per batch, at least 1; None for as many as run in one pass, up to 32.
            sampler: How the samples of an image are drawn; None for the checkpoint's sampler.
            coverage: Adds `prediction_sets` with this probability, such as 0.9, or a warning if the
                checkpoint is not calibrated for it with these options.
            views: Number of views of an image that its trajectories share between them, 1, 2, 4 or
                8 (`eulerlora.nn.rows`); in mode `det` each adapter sees all of them. None for the
                checkpoint's in mode `stoch`, and 1 in mode `det`; other numbers are not calibrated.

        Raises:
            ImageError: For an unusable image and a tensor with other values, SettingsError for an
                option out of range.
            NonFiniteError: If the network returns NaN or infinity.
        """
        if batch_size is not None and batch_size < 1:
            raise SettingsError(f"batch_size: expected at least 1, got {batch_size}")
        if mode != "stoch" and samples is not None:
            raise SettingsError(f"samples: expected none in mode {mode}, got {samples}")
        if coverage is not None and not 0 < coverage < 1:
            raise SettingsError(f"coverage: expected a number between 0 and 1, got {coverage}")
        adaptive = samples == AUTO
        if adaptive:
            self.config.check_adaptive(sampler, views)
        count = ROUNDS[0] if adaptive else DEFAULT_SAMPLES if samples is None else samples
        draw = validated(
            Draw,
            {
                "mode": mode,
                "samples": 1 if mode == "det" else count,
                "seed": seed or 0,
                "sampler": sampler or self.config.sampler,
                "views": self.config.default_views(mode) if views is None else views,
            },
        )
        digest = self.config.sampling_digest
        conversions: list[PredictionWarning] = []

        def prepared(index: int, image: RgbImage) -> tuple[Tensor, Draw]:
            """Returns the network's input and its draw."""
            conversions.extend(
                PredictionWarning(code=warning.code, message=f"image {index}: {warning.message}")
                for warning in image.warnings
            )
            image_draw = draw
            if seed is None and mode == "stoch":
                image_draw = draw.model_copy(update={"seed": content_seed(image.pixels, digest)})
            return network_input(image.pixels, self.config.preprocessing), image_draw

        side = self.config.preprocessing.input_side
        inputs = itertools.starmap(prepared, enumerate(rgb_images(images, side)))
        outputs: list[NetworkOutput] = []
        size = batch_size or self._images_per_pass(draw.count)
        while batch := list(itertools.islice(inputs, size)):
            pixels = torch.stack([image for image, _ in batch]).to(self.device)
            outputs += self._outputs(pixels, [image_draw for _, image_draw in batch], adaptive)
        run = RunOptions(
            mode, AUTO if adaptive else draw.samples, draw.sampler, self.precision, draw.views
        )
        prediction = answer(outputs, self.config, run, coverage)
        return replace(prediction, warnings=(*prediction.warnings, *conversions))

    def _images_per_pass(self, count: int) -> int:
        """Returns the number of images whose rows the runtime runs in one pass, at least 1.

        Args:
            count: Rows of an image and adapter.
        """
        rows = self.network.settings.adapters * count
        return max(1, min(MAX_BATCH_IMAGES, self.runtime.max_rows_per_pass // rows))

    def _outputs(self, pixels: Tensor, draws: list[Draw], adaptive: bool) -> list[NetworkOutput]:
        """Returns the output of the network for every image, in order."""
        temperatures, distance = self.config.temperatures, self.feature_distance
        if not adaptive:
            return predict_images(self.runtime, pixels, draws, temperatures, distance)
        rule = self.config.stopping_rule()
        return predict_adaptively(self.runtime, pixels, draws, rule, temperatures, distance)


def choose_device(name: str) -> torch.device:
    """Returns the named torch device; `auto` is CUDA if available and the CPU otherwise.

    Raises:
        SettingsError: For a device that this machine does not have.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device {name!r} is not available on this machine") from error
    return device


@dataclass(frozen=True)
class PrecisionDecision:
    """A precision, and why it was chosen, in one line."""

    precision: Precision
    reason: str


def missing_bfloat16(device: torch.device) -> str | None:
    """Returns why bfloat16 is no faster than float32 on a device; None if it is."""
    if device.type == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return None if has_bfloat16 else f"the device {device} has no bfloat16"
    if device.type != "cpu":
        return f"bfloat16 has not been measured on the device {device}"
    capabilities = torch.cpu.get_capabilities()
    if not (capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")):
        return "the CPU has neither avx512_bf16 nor amx_bf16"
    kernels = torch.backends.cpu.get_cpu_capability()
    return f"torch uses its kernels for {kernels}" if kernels in SLOW_KERNELS else None


def fastest_precision(choice: PrecisionChoice, device: torch.device) -> Precision:
    """Returns the precision of a choice for work without a checkpoint, such as training steps.

    `auto` is bfloat16 where it is fast on the device, and float32 elsewhere.
    """
    if choice != AUTO:
        return choice
    return "bfloat16" if missing_bfloat16(device) is None else "float32"


def decide_precision(
    choice: PrecisionChoice, checkpoint: Checkpoint, device: torch.device
) -> PrecisionDecision:
    """Returns the precision in which to run a checkpoint on a device.

    `auto` is bfloat16 where it is fast on the device (`missing_bfloat16`) and changes few answers
    on the calibration images (`CheckpointConfig.bfloat16_fault`).
    """
    if choice != AUTO:
        missing = missing_bfloat16(device) if choice == "bfloat16" else None
        slow = "" if missing is None else f", but slow: {missing}"
        return PrecisionDecision(choice, REQUESTED + slow)
    fault = missing_bfloat16(device) or checkpoint.config.bfloat16_fault()
    if fault is not None:
        return PrecisionDecision("float32", fault)
    return PrecisionDecision(
        "bfloat16", "; ".join(entry.summary for entry in checkpoint.config.bfloat16)
    )


HALF_LEVEL = 0.5 / 255
"""How far rounding may take a value out of [0, 1]."""


def rgb_images(images: Images, input_side: int) -> Iterator[RgbImage]:
    """Yields every image, one in memory at a time.

    PIL images, files and arrays: uint8, upright sRGB. Tensors: unchanged.

    Args:
        images: A sequence of PIL images, files and arrays (height, width, 3); or an array (n,
            height, width, 3); or a floating-point tensor (n, 3, height, width) in [0, 1].
        input_side: Of the network's input; large JPEG files are reduced (`jpeg_reduction`), also
            those that PIL opened by path and has not read.

    Raises:
        ImageError: For one image instead of a sequence, another shape or range, or an unreadable
            file.
    """
    kind = type(images).__name__
    alone = isinstance(images, Image.Image | Path | str | bytes | Mapping)
    if alone or not isinstance(images, Iterable):
        raise ImageError(f"expected a sequence of images, got one {kind}")
    if isinstance(images, np.ndarray) and images.ndim != 4:
        raise ImageError(
            "expected an array (n, height, width, 3) or a list of arrays (height, width, 3), "
            f"got {images.dtype} {images.shape}"
        )
    if isinstance(images, Tensor):
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            raise ImageError(
                "expected a floating-point tensor (n, 3, height, width) in [0, 1], "
                f"got {images.dtype} {tuple(images.shape)}"
            )
        if images.numel():
            low, high = (value.item() for value in images.aminmax())
            if not (low > -HALF_LEVEL and high < 1 + HALF_LEVEL):
                raise ImageError(
                    "expected a tensor with values in [0, 1], which the model normalises, "
                    f"got {low:.3g} to {high:.3g}"
                )
        yield from (RgbImage(pixels, ()) for pixels in images)
        return
    for image in images:
        if isinstance(image, Image.Image):
            file = unread_file(image)
            yield upright_rgb(image) if file is None else read_image(file, str(file), input_side)
        elif isinstance(image, np.ndarray):
            yield _rgb_of_array(image)
        elif isinstance(image, str | Path):
            yield read_image(Path(image), str(image), input_side)
        else:
            raise ImageError(
                "expected PIL images, paths or uint8 arrays (height, width, 3), or one tensor "
                f"(n, 3, height, width), got {type(image).__name__} in {kind}"
            )


def _rgb_of_array(image: RgbArray) -> RgbImage:
    """Returns the image in an array.

    Raises:
        ImageError: If it is not (height, width, 3) uint8.
    """
    if image.ndim != 3 or image.shape[2] != 3 or not image.size or image.dtype != np.uint8:
        raise ImageError(
            f"expected an array (height, width, 3) of uint8, got {image.dtype} {image.shape}"
        )
    return RgbImage(channels_first(np.array(image)), ())

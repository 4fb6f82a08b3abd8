"""`EulerLoRA`: a checkpoint on a device, ready to predict."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from eulerlora.checkpoint.config import CheckpointConfig, check_adaptive, stopping_rule
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, Checkpoint, load_checkpoint
from eulerlora.checkpoint.hub import client
from eulerlora.errors import ImageError, SettingsError
from eulerlora.images.files import read_image, unread_file
from eulerlora.images.preprocess import (
    RgbImage,
    channels_first,
    content_seed,
    network_input,
    upright_rgb,
)
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.runtime import ImageOutput, Runtime, predict_adaptively, predict_images
from eulerlora.prediction.answer import Prediction, prediction_of, with_prediction_sets
from eulerlora.prediction.precision import REQUESTED, decide_precision
from eulerlora.sampling.adaptive import ROUNDS
from eulerlora.scores.prediction_sets import RunOptions, check_coverage
from eulerlora.settings import DEFAULT_RUNTIME, Draw, PrecisionChoice, RuntimeSettings
from eulerlora_client.contract.sampling import (
    AUTO,
    DEFAULT_SAMPLES,
    Auto,
    Mode,
    Precision,
    Sampler,
)
from eulerlora_client.settings import validated

RgbArray = npt.NDArray[np.uint8]
"""(height, width, 3), RGB."""

Images = Tensor | RgbArray | Sequence[Image.Image | Path | str | RgbArray]


@dataclass(frozen=True)
class ModelInput:
    """An image and its draw; pixels: (3, size, size) float32 in [0, 1], on the CPU."""

    pixels: Tensor
    draw: Draw


@dataclass(frozen=True)
class PredictOptions:
    """How images are predicted.

    draw: of every image; for adaptive sampling its number of samples is that of the first round.
    adaptive: True for `samples="auto"`. seed_by_content: True if the seed of an
    image is its content seed, False if it is that of `draw`. coverage: of the prediction sets, None
    for none.
    """

    draw: Draw
    adaptive: bool
    seed_by_content: bool
    coverage: float | None = None

    @property
    def samples(self) -> int | Auto:
        """Samples per adapter, or `auto`."""
        return AUTO if self.adaptive else self.draw.samples


class EulerLoRA:
    """A model on a device, ready to predict.

    classes: the class names, in the order of the probabilities. precision, precision_reason: of
    the matrix products, and why it was chosen.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        runtime: RuntimeSettings = DEFAULT_RUNTIME,
        precision_reason: str = REQUESTED,
    ) -> None:
        self.runtime = Runtime(checkpoint.network, device, runtime)
        self.config: CheckpointConfig = checkpoint.config.in_precision(runtime.precision)
        self.revision = checkpoint.revision
        self.feature_distance = checkpoint.feature_distance
        self.folder = checkpoint.folder
        self.device = device
        self.precision: Precision = runtime.precision
        self.precision_reason = precision_reason
        self.classes = tuple(label.name for label in checkpoint.config.classes)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: str = "auto",
        precision: PrecisionChoice = "float32",
        compiler: str | None = None,
    ) -> Self:
        """Returns the model in a checkpoint folder, on `device`.

        device: a torch device, or `auto` for CUDA if available and the CPU otherwise.
        precision, compiler: as in `RuntimeSettings`; they change results by rounding only. The
        precision `auto` is decided by `eulerlora.prediction.precision`.
        Raises CheckpointError if the checkpoint is not intact.
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

        repository: ORGANISATION/NAME, or a checkpoint folder. revision: a branch, a tag or a
        commit. Other arguments as in `load`. Raises HubError and CheckpointError.
        """
        client()  # raises HubError without the extra
        from eulerlora.checkpoint.hub_checkpoint import load_folder  # noqa: PLC0415

        return cls.load(load_folder(repository, revision), device, precision, compiler)

    def push_to_hub(self, repository: str, **options: Any) -> str:
        """Uploads the model's checkpoint to a repository of the Hugging Face Hub.

        options: of huggingface_hub's `ModelHubMixin.push_to_hub`, such as `private=True`. Returns
        the URL of the commit. Raises HubError, and SettingsError for a model without a folder.
        """
        if self.folder is None:
            raise SettingsError("expected a model that was loaded from a folder")
        client()  # raises HubError without the extra
        from eulerlora.checkpoint.hub_checkpoint import push_folder  # noqa: PLC0415

        return push_folder(self.folder, repository, **options)

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
        batch_size: int = 16,
        sampler: Sampler | None = None,
        coverage: float | None = None,
    ) -> Prediction:
        """Returns class probabilities and uncertainty of every image.

        images: a sequence of PIL images, paths or NumPy arrays (height, width, 3), uint8 in RGB; or
        an array (n, height, width, 3); or a tensor (n, 3, height, width) in [0, 1].
        mode: `det`, one pass per adapter; or `stoch`, sampled.
        samples: S per adapter, only in mode `stoch`; `auto` samples only where a pass in `det` does
        not settle the label and flags, in rounds until they are settled, for a checkpoint with
        decision margins; None for `DEFAULT_SAMPLES`.
        seed: of the draws of every image; None derives one from the image and the model's revision.
        batch_size: images per forward pass, at least 1.
        sampler: how the samples of an image are drawn; None for the checkpoint's sampler.
        coverage: adds `prediction_sets` with this probability, such as 0.9, or a warning if the
        checkpoint is not calibrated for it with these options.
        Raises ImageError for an unusable image, SettingsError for an option out of range and
        NonFiniteError if the network returns NaN or infinity.
        """
        if batch_size < 1:
            raise SettingsError(f"batch_size: expected at least 1, got {batch_size}")
        options = self.predict_options(mode, samples, seed, sampler, coverage)
        conversions: list[str] = []

        def prepare(index: int, image: RgbImage) -> ModelInput:
            conversions.extend(f"image {index}: {warning.message}" for warning in image.warnings)
            return self.prepare(image.pixels, options)

        side = self.config.preprocessing.input_side
        inputs = itertools.starmap(prepare, enumerate(rgb_images(images, side)))
        outputs: list[ImageOutput] = []
        while batch := list(itertools.islice(inputs, batch_size)):
            outputs += self._outputs(batch, options)
        prediction = self._prediction(outputs, options)
        return replace(prediction, warnings=(*prediction.warnings, *conversions))

    def predict_options(
        self,
        mode: Mode,
        samples: int | Auto | None,
        seed: int | None,
        sampler: Sampler | None = None,
        coverage: float | None = None,
    ) -> PredictOptions:
        """Returns validated options; arguments and errors as in `predict`."""
        if mode != "stoch" and samples is not None:
            raise SettingsError(f"samples: expected none in mode {mode}, got {samples}")
        if coverage is not None:
            check_coverage(coverage)
        adaptive = samples == AUTO
        if adaptive:
            check_adaptive(self.config, sampler)
        count = ROUNDS[0] if adaptive else DEFAULT_SAMPLES if samples is None else samples
        draw = validated(
            Draw,
            {
                "mode": mode,
                "samples": 1 if mode == "det" else count,
                "seed": seed or 0,
                "sampler": sampler or self.config.sampler,
                "sampled_from_block": self.config.sampled_from_block,
            },
        )
        return PredictOptions(draw, adaptive, seed is None, coverage)

    def prepare(self, pixels: Tensor, options: PredictOptions) -> ModelInput:
        """Returns the network's input for an image.

        pixels: (3, height, width), uint8 upright RGB or floating point in [0, 1].
        """
        draw = options.draw
        if options.seed_by_content and draw.mode == "stoch":
            draw = draw.model_copy(update={"seed": content_seed(pixels, self.revision)})
        return ModelInput(network_input(pixels, self.config.preprocessing), draw)

    def predict_inputs(self, inputs: Sequence[ModelInput], options: PredictOptions) -> Prediction:
        """Returns the prediction of a batch of prepared images. Raises NonFiniteError."""
        return self._prediction(self._outputs(inputs, options), options)

    def _outputs(self, inputs: Sequence[ModelInput], options: PredictOptions) -> list[ImageOutput]:
        """Returns the output of the network for every image, in order."""
        pixels = torch.stack([image.pixels for image in inputs]).to(self.device)
        draws = [image.draw for image in inputs]
        temperature = self.config.temperature
        if options.adaptive:
            rule = stopping_rule(self.config, options.draw.sampler)
            return predict_adaptively(
                self.runtime,
                pixels,
                draws,
                rule,
                self.feature_distance,
                temperature,
            )
        return predict_images(self.runtime, pixels, draws, temperature)

    def _prediction(self, outputs: Sequence[ImageOutput], options: PredictOptions) -> Prediction:
        """Returns the prediction for all images. outputs: of `_outputs`; may be empty."""
        draw = options.draw
        prediction = prediction_of(
            outputs,
            (self.network.settings.adapters, draw.samples),
            self.classes,
            self.feature_distance,
            self.config.threshold(draw.mode, options.samples, draw.sampler),
            draw.mode,
            options.adaptive,
        )
        if options.coverage is None:
            return prediction
        run = RunOptions(draw.mode, options.samples, draw.sampler, self.precision)
        return with_prediction_sets(prediction, options.coverage, run, self.config)


def choose_device(name: str) -> torch.device:
    """Returns the named torch device; `auto` is CUDA if available and the CPU otherwise.

    Raises SettingsError for a device that this machine does not have.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device {name!r} is not available on this machine") from error
    return device


def rgb_images(images: Images, input_side: int) -> Iterator[RgbImage]:
    """Yields every image, one in memory at a time.

    PIL images, files and arrays: uint8, upright sRGB. Tensors: unchanged. input_side: of the
    network's input; large JPEG files are reduced (`jpeg_reduction`), also those that PIL opened by
    path and has not read. Raises ImageError.
    """
    if isinstance(images, Image.Image | Path | str):
        raise ImageError(f"expected a sequence of images, got one {type(images).__name__}")
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
        yield from (RgbImage(pixels, ()) for pixels in images)
        return
    for image in images:
        if isinstance(image, Image.Image):
            file = unread_file(image)
            yield upright_rgb(image) if file is None else read_image(file, str(file), input_side)
        elif isinstance(image, np.ndarray):
            yield _rgb_of_array(image)
        else:
            yield read_image(Path(image), str(image), input_side)


def _rgb_of_array(image: RgbArray) -> RgbImage:
    """Returns the image in an array. Raises ImageError if it is not (height, width, 3) uint8."""
    if image.ndim != 3 or image.shape[2] != 3 or not image.size or image.dtype != np.uint8:
        raise ImageError(
            f"expected an array (height, width, 3) of uint8, got {image.dtype} {image.shape}"
        )
    return RgbImage(channels_first(np.array(image)), ())

"""`EulerLoRA`: a checkpoint on a device, ready to predict."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from PIL import Image
from torch import Tensor

from eulerlora.adaptive_sampling import ROUNDS
from eulerlora.checkpoint import DEFAULT_CHECKPOINT, Checkpoint, load_checkpoint
from eulerlora.config import CheckpointConfig
from eulerlora.errors import ImageError, SettingsError
from eulerlora.image_files import read_pixels
from eulerlora.inference import predict_adaptively, predict_rows
from eulerlora.prediction import Prediction, prediction_of
from eulerlora.preprocess import resize, upright_rgb
from eulerlora.runtime import Runtime
from eulerlora.seeds import content_seed
from eulerlora.settings import (
    AUTO,
    DEFAULT_RUNTIME,
    DEFAULT_SAMPLES,
    Auto,
    Draw,
    Mode,
    Precision,
    RuntimeSettings,
    Sampler,
)
from eulerlora.validation import validated
from eulerlora.vision_transformer import AdaptedVisionTransformer

Images = Tensor | Sequence[Image.Image | Path | str]


@dataclass(frozen=True)
class ModelInput:
    """An image and its draw; pixels: (3, size, size) float32 in [0, 1], on the CPU."""

    pixels: Tensor
    draw: Draw


@dataclass(frozen=True)
class PredictOptions:
    """How images are predicted.

    draw: of every image; for adaptive sampling its number of samples is that of the first round.
    adaptive: True for `samples="auto"`. seed_by_content: True if the seed of an image is its
    content seed, False if it is that of `draw`.
    """

    draw: Draw
    adaptive: bool
    seed_by_content: bool

    @property
    def samples(self) -> int | Auto:
        """Samples per adapter, or `auto`."""
        return AUTO if self.adaptive else self.draw.samples


class EulerLoRA:
    """A model on a device, ready to predict.

    classes: the class names, in the order of the probabilities.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        runtime: RuntimeSettings = DEFAULT_RUNTIME,
    ) -> None:
        self.runtime = Runtime(checkpoint.network, device, runtime)
        self.config: CheckpointConfig = checkpoint.config
        self.revision = checkpoint.revision
        self.device = device
        self.precision = runtime.precision
        self.classes = tuple(label.name for label in checkpoint.config.classes)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: str = "auto",
        precision: Precision = "float32",
        compiler: str | None = None,
    ) -> Self:
        """Returns the model in a checkpoint folder, on `device`.

        device: a torch device, or `auto` for CUDA if available and the CPU otherwise.
        precision, compiler: as in `RuntimeSettings`; they change results by rounding only.
        Raises CheckpointError if the checkpoint is not intact.
        """
        runtime = RuntimeSettings(precision=precision, compiler=compiler)
        return cls(load_checkpoint(Path(folder)), choose_device(device), runtime)

    @classmethod
    def default(
        cls,
        device: str = "auto",
        precision: Precision = "float32",
        compiler: str | None = None,
    ) -> Self:
        """Returns the model of the packaged checkpoint; arguments as in `load`."""
        return cls.load(DEFAULT_CHECKPOINT, device, precision, compiler)

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
    ) -> Prediction:
        """Returns class probabilities and uncertainty of every image.

        images: PIL images or paths; or a tensor (n, 3, height, width) in [0, 1].
        samples: S per adapter in mode `stoch`; `auto` runs rounds until the result converges; None
        for `DEFAULT_SAMPLES`. Mode `det` takes no samples.
        seed: of the draws of every image; None derives one from the image and the model's revision.
        batch_size: images per forward pass, at least 1.
        sampler: how the samples of an image are drawn; None for the checkpoint's sampler.
        Raises ImageError for an unusable image, SettingsError for an option out of range and
        NonFiniteError if the network returns NaN or infinity.
        """
        if batch_size < 1:
            raise SettingsError(f"batch_size: expected at least 1, got {batch_size}")
        options = self.predict_options(mode, samples, seed, sampler)
        inputs = (self.prepare(pixels, options) for pixels in pixels_of(images))
        blocks: list[Tensor] = []
        while batch := list(itertools.islice(inputs, batch_size)):
            blocks += self._trajectories(batch, options)
        return self._prediction(blocks, options)

    def predict_options(
        self,
        mode: Mode,
        samples: int | Auto | None,
        seed: int | None,
        sampler: Sampler | None = None,
    ) -> PredictOptions:
        """Returns validated options; arguments and errors as in `predict`."""
        if mode == "det" and samples is not None:
            raise SettingsError(f"samples: expected none in mode det, got {samples}")
        adaptive = samples == AUTO
        count = DEFAULT_SAMPLES if samples is None else ROUNDS[0] if adaptive else samples
        draw = validated(
            Draw,
            {
                "mode": mode,
                "samples": 1 if mode == "det" else count,
                "seed": seed or 0,
                "sampler": sampler or self.config.sampler,
            },
        )
        return PredictOptions(draw, adaptive, seed_by_content=seed is None)

    def prepare(self, pixels: Tensor, options: PredictOptions) -> ModelInput:
        """Returns the network's input for an image.

        pixels: (3, height, width), uint8 upright RGB or floating point in [0, 1].
        """
        draw = options.draw
        if options.seed_by_content and draw.mode == "stoch":
            draw = draw.model_copy(update={"seed": content_seed(pixels, self.revision)})
        return ModelInput(resize(pixels, self.config.preprocessing.size), draw)

    def predict_inputs(self, inputs: Sequence[ModelInput], options: PredictOptions) -> Prediction:
        """Returns the prediction of a batch of prepared images. Raises NonFiniteError."""
        return self._prediction(self._trajectories(inputs, options), options)

    def _trajectories(self, inputs: Sequence[ModelInput], options: PredictOptions) -> list[Tensor]:
        """Returns the log-probabilities of the images in blocks, in order.

        A block has the shape (n, adapters, samples, classes).
        """
        pixels = torch.stack([image.pixels for image in inputs]).to(self.device)
        draws = [image.draw for image in inputs]
        if options.adaptive:
            threshold = self.config.convergence_threshold(options.draw.sampler)
            trajectories = predict_adaptively(self.runtime, pixels, draws, threshold)
            return [image.unsqueeze(0) for image in trajectories]
        stacked = torch.stack(predict_rows(self.runtime, pixels, draws))
        return [stacked.unflatten(1, (self.network.settings.adapters, -1))]

    def _prediction(self, blocks: Sequence[Tensor], options: PredictOptions) -> Prediction:
        """Returns the prediction for all images. blocks: of `_trajectories`; may be empty."""
        shape = (0, self.network.settings.adapters, options.draw.samples, len(self.classes))
        probabilities = [
            torch.empty(shape, dtype=torch.float64),
            *(block.exp() for block in blocks),
        ]
        draw = options.draw
        threshold = self.config.threshold(draw.mode, options.samples, draw.sampler)
        return prediction_of(probabilities, threshold, self.classes, options.adaptive)


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


def pixels_of(images: Images) -> Iterator[Tensor]:
    """Yields the pixels of every image, (3, height, width), one image in memory at a time.

    PIL images and files: uint8, upright RGB. Tensors: unchanged. Raises ImageError.
    """
    if isinstance(images, Tensor):
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            raise ImageError(
                "expected a floating-point tensor (n, 3, height, width) in [0, 1], "
                f"got {images.dtype} {tuple(images.shape)}"
            )
        yield from images
        return
    for image in images:
        if isinstance(image, Image.Image):
            yield upright_rgb(image).pixels
        else:
            yield read_pixels(Path(image), str(image))

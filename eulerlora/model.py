"""`EulerLoRA`: a checkpoint that answers questions about images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from PIL import Image
from torch import Tensor

from eulerlora.adaptive_sampling import ROUNDS
from eulerlora.checkpoint import Checkpoint, load_checkpoint
from eulerlora.config import CheckpointConfig
from eulerlora.errors import ImageError, SettingsError
from eulerlora.image_files import read_pixels
from eulerlora.predict import predict_adaptively, predict_rows
from eulerlora.prediction import Prediction, prediction_of
from eulerlora.preprocess import resize, upright_rgb
from eulerlora.runtime import Runtime
from eulerlora.seeds import content_seed
from eulerlora.settings import (
    AUTO,
    PLAIN,
    Auto,
    Draw,
    Mode,
    Precision,
    RuntimeSettings,
    Sampler,
    validated,
)
from eulerlora.vision_transformer import AdaptedVisionTransformer

Images = Tensor | Sequence[Image.Image | Path | str]


class EulerLoRA:
    """A model on a device, ready to predict.

    classes: the class names, in the order of the probabilities.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        runtime: RuntimeSettings = PLAIN,
    ) -> None:
        self.runtime = Runtime(checkpoint.network, device, runtime)
        self.config: CheckpointConfig = checkpoint.config
        self.revision = checkpoint.revision
        self.device = device
        self.classes = tuple(each.name for each in checkpoint.config.classes)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: str = "auto",
        precision: Precision = "float32",
        compiler: str | None = None,
    ) -> Self:
        """The model in a checkpoint folder, on `device`; `auto` takes CUDA where there is one.

        precision, compiler: as in `RuntimeSettings`; they change answers by rounding alone.
        Raises CheckpointError for anything but an intact checkpoint.
        """
        runtime = RuntimeSettings(precision=precision, compiler=compiler)
        return cls(load_checkpoint(Path(folder)), choose_device(device), runtime)

    @property
    def network(self) -> AdaptedVisionTransformer:
        """The network that the runtime runs."""
        return self.runtime.network

    def predict(
        self,
        images: Images,
        mode: Mode = "det",
        samples: int | Auto = 4,
        seed: int | None = None,
        batch_size: int = 16,
        sampler: Sampler | None = None,
    ) -> Prediction:
        """Class probabilities and uncertainty of every image.

        images: PIL images or paths; or (n, 3, height, width) in [0, 1].
        samples: S per adapter in mode `stoch`, or `auto` for as many as each image takes until its
        answer is settled; not used in `det`.
        seed: of every image's draws; None derives one from the image and the model's revision.
        batch_size: images in one forward pass.
        sampler: how the samples of an image are drawn; None takes the checkpoint's.
        Raises ImageError for an image that cannot be used, SettingsError for a mode, samples,
        seed or sampler out of range, NonFiniteError for a broken model.
        """
        asked = validated(
            Draw,
            {
                "mode": mode,
                "samples": 1 if mode == "det" else ROUNDS[0] if samples == AUTO else samples,
                "seed": seed or 0,
                "sampler": sampler or self.config.sampler,
            },
        )
        auto = mode == "stoch" and samples == AUTO
        adapters = self.network.settings.adapters
        blocks = [torch.empty(0, adapters, asked.samples, len(self.classes), dtype=torch.float64)]
        for start in range(0, len(images), batch_size):
            chunk = images[start : start + batch_size]
            blocks += self._answers(chunk, asked, auto, seed_by_content=seed is None)
        count = AUTO if auto else asked.samples
        threshold = self.config.threshold(asked.mode, count, asked.sampler)
        return prediction_of([each.exp() for each in blocks], threshold, self.classes, auto)

    def _answers(
        self, images: Images, asked: Draw, auto: bool, seed_by_content: bool
    ) -> list[Tensor]:
        """Log-probabilities (n, adapters, samples, classes) of blocks of the images, in order."""
        pixels = pixels_of(images)
        draws = [asked] * len(pixels)
        if seed_by_content:
            seeds = [content_seed(each, self.revision) for each in pixels]
            draws = [asked.model_copy(update={"seed": seed}) for seed in seeds]
        size = self.config.preprocessing.size
        inputs = torch.stack([resize(each, size) for each in pixels]).to(self.device)
        if auto:
            threshold = self.config.convergence_threshold(asked.sampler)
            found = predict_adaptively(self.runtime, inputs, draws, threshold)
            return [each.unsqueeze(0) for each in found]
        answers = torch.stack(predict_rows(self.runtime, inputs, draws))
        return [answers.unflatten(1, (self.network.settings.adapters, -1))]


def choose_device(name: str) -> torch.device:
    """The named torch device; `auto` is CUDA where there is one and the CPU otherwise.

    Raises SettingsError for a device that this machine does not have.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device {name!r} cannot be used on this machine") from error
    return device


def pixels_of(images: Images) -> list[Tensor]:
    """The pixels of every image, (3, height, width) each: uint8 of PIL images and files, upright
    and in RGB; a tensor's as they are. Raises ImageError.
    """
    if isinstance(images, Tensor):
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            raise ImageError(
                "wanted a floating-point tensor (n, 3, height, width) in [0, 1], "
                f"got {images.dtype} {tuple(images.shape)}"
            )
        return list(images)
    return [
        upright_rgb(each).pixels
        if isinstance(each, Image.Image)
        else read_pixels(Path(each), str(each))
        for each in images
    ]

"""The known answer of a checkpoint: an image with the probabilities that an intact model returns.

`known_answer.png` is a synthetic image of smooth random colours. `known_answer.json` has its
SHA-256 and the probabilities that the network returns in float32 on a CPU.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Self

import torch
from PIL import Image
from pydantic import Field, ValidationError, model_validator
from torch import Tensor
from torch.nn import functional as F

from eulerlora.atomic_files import atomic_write
from eulerlora.calibration_schema import Sha256
from eulerlora.config import CheckpointConfig
from eulerlora.errors import CheckpointError, ImageError
from eulerlora.image_files import read_pixels
from eulerlora.inference import RowNetwork, predict_images
from eulerlora.preprocess import network_input
from eulerlora.settings import SAMPLERS, Draw, Precision, Preprocessing
from eulerlora.uncertainty import summarise
from eulerlora.validation import Settings, first_fault

IMAGE_FILE, EXPECTED_FILE = "known_answer.png", "known_answer.json"
DRAWS = (
    Draw(),
    *(Draw(mode="stoch", samples=4, seed=20260101, sampler=sampler) for sampler in SAMPLERS),
)
TOLERANCES: dict[Precision, float] = {"float32": 1e-3, "bfloat16": 0.03}
"""Largest accepted difference of a probability from the stored one, by the model's precision."""

IMAGE_SEED = 0
IMAGE_HEIGHT, IMAGE_WIDTH = 96, 128
SUM_TOLERANCE = 1e-6

Probability = Annotated[float, Field(ge=0, le=1)]


class ExpectedProbabilities(Settings):
    """A draw and the class probabilities it gives, in the order of the classes."""

    draw: Draw
    probabilities: tuple[Probability, ...]

    @model_validator(mode="after")
    def _sum_to_one(self) -> Self:
        if abs(sum(self.probabilities) - 1) > SUM_TOLERANCE:
            raise ValueError("probabilities do not sum to 1")
        return self


class KnownAnswerFile(Settings):
    """The schema of `known_answer.json`."""

    picture_sha256: Sha256
    answers: tuple[ExpectedProbabilities, ...]

    @model_validator(mode="after")
    def _has_every_draw(self) -> Self:
        if tuple(answer.draw for answer in self.answers) != DRAWS:
            raise ValueError(
                "answers: expected det, then stoch with 4 samples of each sampler; got other draws"
            )
        return self


@dataclass(frozen=True)
class KnownAnswer:
    """The network's input and the probabilities that an intact model returns for it.

    pixels: (3, size, size) in [0, 1]. expected: one for each of `DRAWS`. classes: the names of the
    probabilities.
    """

    pixels: Tensor
    expected: tuple[ExpectedProbabilities, ...]
    classes: tuple[str, ...]

    def fault(self, outputs: Sequence[Tensor], precision: Precision) -> str | None:
        """Returns the first deviation from the stored probabilities as one line, or None.

        outputs: log-probabilities (trajectories, classes) for each of `DRAWS`.
        """
        for expected, output in zip(self.expected, outputs, strict=True):
            fault = self._deviation(expected, mean_probabilities(output), TOLERANCES[precision])
            if fault is not None:
                return fault
        return None

    def _deviation(
        self, expected: ExpectedProbabilities, actual: Tensor, tolerance: float
    ) -> str | None:
        mode = expected.draw.mode
        if not actual.isfinite().all():
            return f"the known answer is wrong: mode {mode}: got NaN or infinity"
        stored = torch.tensor(expected.probabilities, dtype=torch.float64)
        deviation, worst = (actual - stored).abs().max(dim=0)
        if deviation <= tolerance:
            return None
        return (
            f"the known answer is wrong: mode {mode}: expected probability {stored[worst]:.4f} of "
            f"{self.classes[worst]} within {tolerance}, got {actual[worst]:.4f}"
        )


def mean_probabilities(log_probabilities: Tensor) -> Tensor:
    """Returns the mean over trajectories, (classes,) float64.

    log_probabilities: (trajectories, classes).
    """
    return summarise(log_probabilities.exp().unsqueeze(0)).probabilities[0]


def predict_known_answer(
    network: RowNetwork, pixels: Tensor, temperature: float = 1.0
) -> list[Tensor]:
    """Returns the log-probabilities (trajectories, classes) for each of `DRAWS`.

    pixels: (3, size, size), on the network's device. temperature: of the checkpoint.
    """
    outputs = predict_images(network, torch.stack([pixels] * len(DRAWS)), DRAWS, temperature)
    return [output.log_probabilities for output in outputs]


def write_known_answer(folder: Path, network: RowNetwork, config: CheckpointConfig) -> None:
    """Writes the synthetic image and the model's probabilities to a checkpoint's folder.

    network: loaded from the checkpoint's files, in float32 on the CPU.
    """
    image = _png(synthetic_image())
    pixels = _network_input(folder / IMAGE_FILE, image, config.preprocessing)
    outputs = predict_known_answer(network, pixels, config.temperature)
    stored = KnownAnswerFile(
        picture_sha256=hashlib.sha256(image).hexdigest(),
        answers=tuple(
            ExpectedProbabilities(
                draw=draw, probabilities=tuple(mean_probabilities(output).tolist())
            )
            for draw, output in zip(DRAWS, outputs, strict=True)
        ),
    )
    with atomic_write(folder / IMAGE_FILE) as partial:
        partial.write_bytes(image)
    with atomic_write(folder / EXPECTED_FILE) as partial:
        partial.write_text(stored.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_known_answer(folder: Path, config: CheckpointConfig) -> KnownAnswer:
    """Returns the known answer in the folder of the checkpoint with this config.

    Raises CheckpointError, with file and reason, if a file is missing or damaged, or if the image,
    the probabilities and the config do not match.
    """
    image_path, expected_path = folder / IMAGE_FILE, folder / EXPECTED_FILE
    try:
        stored = KnownAnswerFile.model_validate_json(_read(expected_path))
    except ValidationError as error:
        raise CheckpointError(expected_path, first_fault(error)) from error
    classes = tuple(label.name for label in config.classes)
    for answer in stored.answers:
        if len(answer.probabilities) != len(classes):
            raise CheckpointError(
                expected_path,
                f"expected {len(classes)} probabilities, got {len(answer.probabilities)}",
            )
    image = _read(image_path)
    if hashlib.sha256(image).hexdigest() != stored.picture_sha256:
        raise CheckpointError(image_path, f"its SHA-256 differs from that in {EXPECTED_FILE}")
    pixels = _network_input(image_path, image, config.preprocessing)
    return KnownAnswer(pixels, stored.answers, classes)


def synthetic_image() -> Tensor:
    """Returns (3, height, width) uint8: smooth random colours, different in every corner."""
    coarse = torch.rand(1, 3, 4, 5, generator=torch.Generator().manual_seed(IMAGE_SEED))
    size = (IMAGE_HEIGHT, IMAGE_WIDTH)
    smooth = F.interpolate(coarse, size, mode="bilinear", align_corners=True)[0]
    return (255 * smooth).round().to(torch.uint8)


def _png(pixels: Tensor) -> bytes:
    content = BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(content, "PNG")
    return content.getvalue()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(path, f"cannot be read ({error.strerror})") from error


def _network_input(path: Path, content: bytes, preprocessing: Preprocessing) -> Tensor:
    """Returns (3, size, size) from the bytes of a PNG file; errors name `path`."""
    try:
        return network_input(read_pixels(BytesIO(content), path.name), preprocessing)
    except ImageError as error:
        raise CheckpointError(path, str(error)) from error

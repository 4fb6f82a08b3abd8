"""A picture whose answers are stored with a checkpoint, to tell a working model from a broken one.

`known_answer.png` is made up of smooth random colours; `known_answer.json` has its SHA-256 and the
answers that the network gives in float32 on a CPU.
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
from eulerlora.config import CheckpointConfig, Sha256
from eulerlora.errors import CheckpointError, ImageError
from eulerlora.image_files import read_pixels
from eulerlora.inference import RowNetwork, predict_rows
from eulerlora.preprocess import resize
from eulerlora.settings import SAMPLERS, Draw, Precision, Settings, first_fault
from eulerlora.uncertainty import summarise

IMAGE_FILE, EXPECTED_FILE = "known_answer.png", "known_answer.json"
DRAWS = (
    Draw(),
    *(Draw(mode="stoch", samples=4, seed=20260101, sampler=sampler) for sampler in SAMPLERS),
)
TOLERANCES: dict[Precision, float] = {"float32": 1e-3, "bfloat16": 0.03}
"""How far a probability may be from the stored one, by the precision that the model runs in."""

SEED = 0
SIDES = 96, 128  # height, width, in pixels
SUM_TOLERANCE = 1e-6

Probability = Annotated[float, Field(ge=0, le=1)]


class Answer(Settings):
    """How the picture is asked about, and the class probabilities in the order of the classes."""

    draw: Draw
    probabilities: tuple[Probability, ...]

    @model_validator(mode="after")
    def _a_distribution(self) -> Self:
        if abs(sum(self.probabilities) - 1) > SUM_TOLERANCE:
            raise ValueError("probabilities do not add up to 1")
        return self


class Answers(Settings):
    """All of `known_answer.json`."""

    picture_sha256: Sha256
    answers: tuple[Answer, ...]

    @model_validator(mode="after")
    def _every_draw(self) -> Self:
        if tuple(each.draw for each in self.answers) != DRAWS:
            raise ValueError(
                "answers are not to the questions wanted: det; stoch, 4 samples, of each sampler"
            )
        return self


@dataclass(frozen=True)
class KnownAnswer:
    """Questions in each mode, and with each sampler, whose answers are known.

    pixels: (3, size, size), the picture as the network's input. answers: one for each of `DRAWS`.
    classes: the names of the probabilities.
    """

    pixels: Tensor
    answers: tuple[Answer, ...]
    classes: tuple[str, ...]

    def fault(self, given: Sequence[Tensor], precision: Precision) -> str | None:
        """What is wrong with the answers given, in one line; None where they are as stored.

        given: log-probabilities (trajectories, classes) for each of `DRAWS`.
        """
        for wanted, found in zip(self.answers, given, strict=True):
            fault = self._fault_of(wanted, mean_probabilities(found), TOLERANCES[precision])
            if fault is not None:
                return fault
        return None

    def _fault_of(self, wanted: Answer, found: Tensor, tolerance: float) -> str | None:
        mode = wanted.draw.mode
        if not found.isfinite().all():
            return f"the known answer is wrong: mode {mode} gave NaN or an infinity"
        stored = torch.tensor(wanted.probabilities, dtype=torch.float64)
        deviation, worst = (found - stored).abs().max(dim=0)
        if deviation <= tolerance:
            return None
        return (
            f"the known answer is wrong: mode {mode} gave {self.classes[worst]} a probability of "
            f"{found[worst]:.4f}, wanted {stored[worst]:.4f} within {tolerance}"
        )


def mean_probabilities(log_probabilities: Tensor) -> Tensor:
    """(classes,) float64: the mean over trajectories.

    log_probabilities: (trajectories, classes).
    """
    return summarise(log_probabilities.exp().unsqueeze(0)).probabilities[0]


def predict_known_answer(network: RowNetwork, pixels: Tensor) -> list[Tensor]:
    """Log-probabilities (trajectories, classes) that a network gives for each of `DRAWS`.

    pixels: (3, size, size), on the network's device.
    """
    return predict_rows(network, torch.stack([pixels] * len(DRAWS)), DRAWS)


def write_known_answer(folder: Path, network: RowNetwork, size: int) -> None:
    """Writes the picture and the network's answers to a checkpoint's folder.

    network: as the checkpoint's files say, in float32 on the CPU. size: of its input, in pixels.
    """
    content = _png(synthetic_image())
    given = predict_known_answer(network, _input(folder / IMAGE_FILE, content, size))
    answers = Answers(
        picture_sha256=hashlib.sha256(content).hexdigest(),
        answers=tuple(
            Answer(draw=draw, probabilities=tuple(mean_probabilities(each).tolist()))
            for draw, each in zip(DRAWS, given, strict=True)
        ),
    )
    with atomic_write(folder / IMAGE_FILE) as partial:
        partial.write_bytes(content)
    with atomic_write(folder / EXPECTED_FILE) as partial:
        partial.write_text(answers.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_known_answer(folder: Path, config: CheckpointConfig) -> KnownAnswer:
    """The known answer in the folder of the checkpoint that has this config.

    Raises CheckpointError, naming the file and why, where one is missing or damaged, or where
    they do not belong to one another or to the config.
    """
    picture, path = folder / IMAGE_FILE, folder / EXPECTED_FILE
    try:
        stored = Answers.model_validate_json(_read(path))
    except ValidationError as error:
        raise CheckpointError(path, first_fault(error)) from error
    for each in stored.answers:
        if len(each.probabilities) != len(config.classes):
            raise CheckpointError(
                path,
                f"has {len(each.probabilities)} probabilities for {len(config.classes)} classes",
            )
    content = _read(picture)
    if hashlib.sha256(content).hexdigest() != stored.picture_sha256:
        raise CheckpointError(picture, f"its SHA-256 is not the one in {EXPECTED_FILE}")
    return KnownAnswer(
        pixels=_input(picture, content, config.preprocessing.size),
        answers=stored.answers,
        classes=tuple(each.name for each in config.classes),
    )


def synthetic_image() -> Tensor:
    """(3, height, width) uint8: smooth random colours, different in every corner."""
    coarse = torch.rand(1, 3, 4, 5, generator=torch.Generator().manual_seed(SEED))
    smooth = F.interpolate(coarse, SIDES, mode="bilinear", align_corners=True)[0]
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


def _input(path: Path, content: bytes, size: int) -> Tensor:
    """The network's input, from a PNG file's bytes."""
    try:
        return resize(read_pixels(BytesIO(content), path.name), size)
    except ImageError as error:
        raise CheckpointError(path, str(error)) from error

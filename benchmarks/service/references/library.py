"""What the library alone does for one image and for a batch: the engine without a service."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from eulerlora.checkpoint import DEFAULT_CHECKPOINT
from eulerlora.inference import predict_rows
from eulerlora.model import EulerLoRA, pixels_of
from eulerlora.preprocess import resize
from eulerlora.seeds import content_seed
from eulerlora.settings import Draw, Mode
from eulerlora.uncertainty import summarise

SAMPLES = 4


@dataclass(frozen=True)
class Asked:
    """A decoded image and how it is to be answered. pixels: (3, size, size), in [0, 1]."""

    pixels: Tensor
    draw: Draw


def embedded_model() -> EulerLoRA:
    """The checkpoint that the service serves where none is named, on the CPU."""
    return EulerLoRA.load(DEFAULT_CHECKPOINT, "cpu")


def decoded(model: EulerLoRA, data: bytes, mode: Mode) -> Asked:
    """An image file as the library reads it, with the seed that its content gives."""
    with Image.open(BytesIO(data)) as image:
        (pixels,) = pixels_of([image])
    seed = content_seed(pixels, model.revision)
    samples = SAMPLES if mode == "stoch" else 1
    size = model.config.preprocessing.size
    return Asked(resize(pixels, size), Draw(mode=mode, samples=samples, seed=seed))


def answers(model: EulerLoRA, asked: Sequence[Asked]) -> list[Tensor]:
    """The trajectories' probabilities of every image, whatever the modes, in one forward pass."""
    pixels = torch.stack([each.pixels for each in asked])
    logs = predict_rows(model.runtime, pixels, [each.draw for each in asked])
    return [each.exp() for each in logs]


def body(model: EulerLoRA, trajectories: Tensor) -> dict[str, Any]:
    """One image's answer as JSON values: the numbers of the service's own body."""
    found = summarise(trajectories[None])
    probabilities = found.probabilities[0].tolist()
    return {
        "label": model.classes[int(found.probabilities[0].argmax())],
        "probabilities": dict(zip(model.classes, probabilities, strict=True)),
        "entropy": found.entropy.item(),
        "expected_entropy": found.expected_entropy.item(),
        "mutual_information": found.mutual_information.item(),
        "msp": found.msp.item(),
    }

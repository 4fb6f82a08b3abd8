"""Reference: decoding and inference by the library, without a service."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT
from eulerlora.images.preprocess import content_seed, network_input
from eulerlora.model import EulerLoRA, rgb_images
from eulerlora.nn.runtime import predict_rows
from eulerlora.scores.uncertainty import summarise
from eulerlora.settings import Draw, Mode

SAMPLES = 4


@dataclass(frozen=True)
class InferenceInput:
    """A decoded image with its draw. pixels: (3, size, size) in [0, 1]."""

    pixels: Tensor
    draw: Draw


def default_model() -> EulerLoRA:
    """Loads the default checkpoint on the CPU."""
    return EulerLoRA.load(DEFAULT_CHECKPOINT, "cpu")


def decode(model: EulerLoRA, data: bytes, mode: Mode) -> InferenceInput:
    """Decodes an image file; the seed is that of its content."""
    with Image.open(BytesIO(data)) as image:
        (rgb,) = rgb_images([image], model.config.preprocessing.input_side)
    seed = content_seed(rgb.pixels, model.revision)
    samples = SAMPLES if mode == "stoch" else 1
    pixels = network_input(rgb.pixels, model.config.preprocessing)
    return InferenceInput(pixels, Draw(mode=mode, samples=samples, seed=seed))


def predict(model: EulerLoRA, inputs: Sequence[InferenceInput]) -> list[Tensor]:
    """Returns the trajectories' probabilities of every image, from one forward pass."""
    pixels = torch.stack([item.pixels for item in inputs])
    log_probabilities = predict_rows(model.runtime, pixels, [item.draw for item in inputs])
    return [trajectories.exp() for trajectories in log_probabilities]


def body(model: EulerLoRA, trajectories: Tensor) -> dict[str, Any]:
    """Returns the response for an image as JSON values, with the numbers of the service's body."""
    summary = summarise(trajectories[None])
    probabilities = summary.probabilities[0].tolist()
    return {
        "label": model.classes[int(summary.probabilities[0].argmax())],
        "probabilities": dict(zip(model.classes, probabilities, strict=True)),
        "entropy": summary.entropy.item(),
        "expected_entropy": summary.expected_entropy.item(),
        "mutual_information": summary.mutual_information.item(),
        "msp": summary.msp.item(),
    }

"""Reference: decoding and inference by the library, without our service.

As a program, `python -m eulerlora_lab.benchmarks.service.references PORT` serves the FastAPI route
that one writes first: `POST /predict` takes a form with the fields `file` and `mode`. FastAPI runs
the route in its pool of threads, an image at a time in each; nothing is batched or checked.
"""

import sys
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from typing import Annotated, Any

import torch
import uvicorn
from fastapi import FastAPI, File, Form
from PIL import Image
from torch import Tensor

from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT
from eulerlora.images.files import rgb_images
from eulerlora.images.preprocess import content_seed, network_input
from eulerlora.model import EulerLoRA
from eulerlora.nn.network import predict_images
from eulerlora.scores.uncertainty import summarise
from eulerlora.settings import Draw
from eulerlora_contract.sampling import Mode
from eulerlora_lab.benchmarks.service.load import REQUEST_SAMPLES
from service.inference.engine import InferenceItem


@cache
def default_model() -> EulerLoRA:
    """Loads the default checkpoint on the CPU."""
    return EulerLoRA.load(DEFAULT_CHECKPOINT, "cpu")


@cache
def chosen_model() -> EulerLoRA:
    """Loads it in the precision and the runtime that are faster, as `eulerlora serve` does."""
    return EulerLoRA.load(DEFAULT_CHECKPOINT, "cpu", precision="auto", runtime="auto")


def inference_item(model: EulerLoRA, data: bytes, mode: Mode) -> InferenceItem:
    """Decodes an image file; the seed is that of its content."""
    with Image.open(BytesIO(data)) as image:
        (rgb,) = rgb_images([image], model.config.preprocessing.input_side)
    options = model.options(mode, REQUEST_SAMPLES if mode == "stoch" else None)
    draw = Draw.of(options, content_seed(rgb.pixels, model.config.sampling_digest))
    return InferenceItem(network_input(rgb.pixels, model.config.preprocessing), draw)


def predict(model: EulerLoRA, inputs: Sequence[InferenceItem]) -> list[Tensor]:
    """The trajectories' probabilities of every image, from one forward pass."""
    pixels = torch.stack([item.pixels for item in inputs])
    draws = [item.draw for item in inputs]
    outputs = predict_images(model.runtime, pixels, draws, model.config.temperatures)
    return [trajectories.flat_log_probabilities[0].exp() for trajectories in outputs]


def body(model: EulerLoRA, trajectories: Tensor) -> dict[str, Any]:
    """The response for an image as JSON values, with the numbers of the service's body."""
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


def _plain_application() -> FastAPI:
    """The application of the plain route: /predict and /readyz."""
    app, model = FastAPI(), default_model()

    @app.post("/predict")
    def predict_route(
        file: Annotated[bytes, File()], mode: Annotated[Mode, Form()] = "det"
    ) -> dict[str, Any]:
        (trajectories,) = predict(model, [inference_item(model, file, mode)])
        return body(model, trajectories)

    @app.get("/readyz")
    async def ready() -> None:
        return None

    return app


if __name__ == "__main__":
    uvicorn.run(_plain_application(), port=int(sys.argv[1]), access_log=False)

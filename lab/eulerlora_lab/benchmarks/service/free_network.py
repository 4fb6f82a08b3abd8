"""Servers whose network costs nothing: what is left is HTTP, decoding and answers.

As programs, `python -m eulerlora_lab.benchmarks.service.free_network OPTIONS` is `eulerlora serve`
with these options, which runs its network once for each draw and then returns the stored
trajectories; with `plain PORT` it is a FastAPI route that decodes and resizes by Pillow.
"""

import sys
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Annotated, Any

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, File
from PIL import Image

from eulerlora.scores.trajectories import Trajectories
from eulerlora.settings import Draw
from eulerlora_contract.__main__ import main
from eulerlora_lab.benchmarks.service.references import body, default_model
from service.inference.engine import InferenceItem, ServedModel


def _serve(options: Sequence[str]) -> None:
    """Runs `eulerlora serve`. The seed of a draw is that of the image's content."""
    run = ServedModel.infer
    stored: dict[Draw, Trajectories] = {}

    def infer(served: ServedModel, items: Sequence[InferenceItem]) -> list[Trajectories]:
        for item in items:
            if item.draw not in stored:
                stored[item.draw] = run(served, [item])[0]
        return [stored[item.draw] for item in items]

    ServedModel.infer = infer  # type: ignore[method-assign,assignment]
    sys.argv[1:] = ["serve", *options]
    main()


def free_answers() -> Callable[[bytes], dict[str, Any]]:
    """From an image file to its answer: by Pillow, and of stored trajectories."""
    model = default_model()
    side = model.config.preprocessing.size
    logits = torch.linspace(0, 3, len(model.classes))
    stored = logits.softmax(-1).expand(model.network.settings.adapters, -1)  # of det

    def answer(data: bytes) -> dict[str, Any]:
        with Image.open(BytesIO(data)) as image:
            resized = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
        torch.from_numpy(np.asarray(resized, np.float32) / 255)
        return body(model, stored)

    return answer


def _serve_plain(port: int) -> None:
    app, answer = FastAPI(), free_answers()

    @app.post("/predict")
    def predict_route(file: Annotated[bytes, File()]) -> dict[str, Any]:
        return answer(file)

    @app.get("/readyz")
    async def ready() -> None:
        return None

    uvicorn.run(app, port=port, access_log=False)


if __name__ == "__main__":
    if sys.argv[1] == "plain":
        _serve_plain(int(sys.argv[2]))
    else:
        _serve(sys.argv[1:])

"""The least that a FastAPI route with a model behind it adds to a lone request.

As a program: `python -m benchmarks.service.references.bare_route`, on a free port. `POST /predict` takes the
same body as the service's and gives an answer of the same kind, but looks at nothing: the body is
read and left alone, and the model runs in one thread, on one picture that was decoded before.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Request, Response
from torch import Tensor

from benchmarks.service.references.library import Asked, answers, body, embedded_model
from eulerlora.settings import Draw


def application() -> FastAPI:
    """The route, and one that says that it is there."""
    app, model, thread = FastAPI(), embedded_model(), ThreadPoolExecutor(1)
    size = model.config.preprocessing.size
    asked = Asked(torch.zeros(3, size, size), Draw())
    answer = body(model, answers(model, [asked])[0])

    def run() -> tuple[Tensor, float]:
        started = time.monotonic()
        found = answers(model, [asked])[0]
        return found, time.monotonic() - started

    @app.post("/predict")
    async def predict(request: Request, response: Response) -> dict[str, Any]:
        await request.body()
        _, seconds = await asyncio.get_running_loop().run_in_executor(thread, run)
        response.headers["Server-Timing"] = f"decode;dur=0, model;dur={1000 * seconds:.2f}"
        return answer

    @app.get("/readyz")
    async def ready() -> None:
        return None

    return app


if __name__ == "__main__":
    uvicorn.run(application(), port=0, http="h11", access_log=False)

"""Reference: a minimal FastAPI route with a model.

As a program, `python -m benchmarks.service.references.bare_route` serves on a free port.
`POST /predict` accepts the body of the service and returns a response of the same form. It does
not validate or decode the body; the model runs in one thread on a fixed image.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Request, Response

from benchmarks.service.references.library import InferenceInput, body, default_model, predict
from eulerlora.settings import Draw


def application() -> FastAPI:
    """Returns the application: /predict and /readyz."""
    app, model, thread = FastAPI(), default_model(), ThreadPoolExecutor(1)
    size = model.config.preprocessing.size
    inputs = [InferenceInput(torch.zeros(3, size, size), Draw())]
    response_body = body(model, predict(model, inputs)[0])

    def run() -> float:
        started = time.monotonic()
        predict(model, inputs)
        return time.monotonic() - started

    @app.post("/predict")
    async def predict_route(request: Request, response: Response) -> dict[str, Any]:
        await request.body()
        seconds = await asyncio.get_running_loop().run_in_executor(thread, run)
        response.headers["Server-Timing"] = f"decode;dur=0, model;dur={1000 * seconds:.2f}"
        return response_body

    @app.get("/readyz")
    async def ready() -> None:
        return None

    return app


if __name__ == "__main__":
    uvicorn.run(application(), port=0, http="h11", access_log=False)

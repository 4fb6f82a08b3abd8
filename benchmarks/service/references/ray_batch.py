"""Reference: Ray Serve with `@serve.batch`, with the functions of the library.

As a program, `python -m benchmarks.service.references.ray_batch PORT` serves with one replica, on
a cluster of this machine. `POST /predict` takes a form with the fields `file` and `mode`. Every
batch is one call of the library, with mixed modes; nothing is checked.
"""

import asyncio
import sys
import threading
from typing import Any

from fastapi import FastAPI
from ray import serve
from starlette.requests import Request

from benchmarks.service.references.library import (
    InferenceInput,
    body,
    decode,
    default_model,
    predict,
)
from eulerlora_client.contract.sampling import Mode

BATCH_SIZE, BATCH_WAIT_S = 8, 0.005
app = FastAPI()


@serve.ingress(app)
class BatchedModel:
    """A replica: decodes every image in a thread and answers in batches."""

    def __init__(self) -> None:
        self.model = default_model()

    @serve.batch(max_batch_size=BATCH_SIZE, batch_wait_timeout_s=BATCH_WAIT_S)
    async def answers(self, inputs: list[InferenceInput]) -> list[dict[str, Any]]:
        """Returns the bodies for a batch."""
        outputs = await asyncio.to_thread(predict, self.model, inputs)
        return [body(self.model, trajectories) for trajectories in outputs]

    @app.post("/predict")
    async def predict_route(self, request: Request) -> dict[str, Any]:
        """Answers one image."""
        form = await request.form()
        mode: Mode = "stoch" if form["mode"] == "stoch" else "det"
        content = await form["file"].read()  # type: ignore[union-attr]
        single = await asyncio.to_thread(decode, self.model, content, mode)
        answer: dict[str, Any] = await self.answers(single)
        return answer

    @app.get("/readyz")
    async def ready(self) -> None:
        """Answers when the replica has its model."""


def _main(port: int) -> None:
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(serve.deployment(max_ongoing_requests=128)(BatchedModel).bind())
    threading.Event().wait()


if __name__ == "__main__":
    _main(int(sys.argv[1]))

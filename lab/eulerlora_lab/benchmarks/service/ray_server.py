"""Reference: Ray Serve with `@serve.batch` and the same model, using the functions of the library.

As a program: `python -m eulerlora_lab.benchmarks.service.ray_server PORT`, on a cluster of this
machine; needs the extra `ray`. A request is a form with the fields `file` and `mode`. Two replicas
with one core each gather batches of at most 8 for 5 ms; a batch is one call of the library, with
mixed modes. The server does not validate requests, which is in its favour.
"""

import asyncio
import sys
import threading
from typing import Any

import ray
import torch
from fastapi import FastAPI, Request
from ray import serve

from eulerlora_contract.sampling import Mode
from eulerlora_lab.benchmarks.service.references import body, default_model, inference_item, predict
from service.inference.engine import InferenceItem

_REPLICAS = 2
app = FastAPI()


@serve.ingress(app)
class BatchedModel:
    """A replica: decodes every image in a thread and answers in batches."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model = default_model()

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.005)
    async def answers(self, inputs: list[InferenceItem]) -> list[dict[str, Any]]:
        """The response bodies of a batch."""
        outputs = await asyncio.to_thread(predict, self.model, inputs)
        return [body(self.model, trajectories) for trajectories in outputs]

    @app.post("/predict")
    async def predict_route(self, request: Request) -> dict[str, Any]:
        """Answers one image."""
        async with request.form() as form:
            mode: Mode = "stoch" if form["mode"] == "stoch" else "det"
            content = await form["file"].read()  # type: ignore[union-attr]
        item = await asyncio.to_thread(inference_item, self.model, content, mode)
        response: dict[str, Any] = await self.answers(item)
        return response

    @app.get("/readyz")
    async def ready(self) -> None:
        """Answers when a replica has its model."""


if __name__ == "__main__":
    ray.init("local", num_cpus=_REPLICAS, include_dashboard=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    deployment = serve.deployment(num_replicas=_REPLICAS, max_ongoing_requests=128)
    serve.run(deployment(BatchedModel).bind())
    threading.Event().wait()

"""A pipeline with a real model, whose forward passes and decoder a test can block."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from fastapi import Request
from pydantic import BaseModel

from eulerlora import EulerLoRA
from eulerlora.images.preprocess import content_seed, network_input
from eulerlora.settings import Draw
from eulerlora_contract.answers import Prediction
from eulerlora_contract.queries import PredictQuery
from service.decoding.decode import decode
from service.decoding.messages import DecodedInput, DecodeJob
from service.decoding.sandbox import Sandbox
from service.decoding.slots import DecodingSlots
from service.extensions import Extension
from service.fair_sharing import ClientQuota
from service.inference.engine import InferenceItem, ServedModel, ServedModels
from service.inference.queue import RequestQueue
from service.inference.workers import InferenceWorkers
from service.prediction import Pipeline
from service.settings import ServiceSettings
from service.telemetry.records import RequestObservation
from tests.service.fake_engine import MAX_PASS_MS, TIMEOUT_S

DET = PredictQuery()


class FakeRequest:
    """A request with a body whose client stays connected until `disconnect`.

    body_reads: the number of body messages that were received.
    """

    def __init__(self, body: bytes, observation: RequestObservation | None = None) -> None:
        self._messages = [{"type": "http.request", "body": body, "more_body": False}]
        self._disconnected = asyncio.Event()
        self.body_reads = 0
        scope = {
            "type": "http",
            "method": "POST",
            "headers": [(b"content-type", b"image/png"), (b"content-length", b"%d" % len(body))],
            "state": {
                "request_id": "the-id",
                "observation": observation or RequestObservation("POST"),
            },
        }
        self.request = Request(scope, self._receive)

    async def _receive(self) -> Any:
        if self._messages:
            self.body_reads += 1
            return self._messages.pop()
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    def disconnect(self) -> None:
        self._disconnected.set()


class FakeDecoder:
    """Decodes in this process; blocks while `gate` is cleared. `entered` is set at each call."""

    def __init__(self) -> None:
        self.gate, self.entered = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.cpu_s = 0.001

    async def decode(
        self,
        job: DecodeJob,
        on_cpu_s: Callable[[float], None] = lambda _: None,
        *,
        client: str = "",
    ) -> DecodedInput:
        self.entered.set()
        await self.gate.wait()
        on_cpu_s(self.cpu_s)
        image = decode(job.content, ServiceSettings().images, job.declared)
        seed = content_seed(image.pixels, job.sampling_digest)
        return DecodedInput(
            network_input(image.pixels, job.preprocessing).numpy(),
            seed,
            image.warnings,
            decode_s=0.001,
        )


class WorkingDecoder:
    """Decoders that work, for a service that decodes nothing."""

    is_working = True
    sandbox = Sandbox()

    async def start(self) -> None:
        """Starts nothing."""

    def close(self) -> None:
        """Ends nothing."""


class Recorder(Extension):
    """An extension that stores answered images with their bodies, or fails."""

    reads_files = True

    def __init__(self, failure: Exception | None = None) -> None:
        self.images: list[tuple[Any, BaseModel]] = []
        self.failure = failure

    async def answered(self, image: Any, body: BaseModel) -> None:
        if self.failure is not None:
            raise self.failure
        self.images.append((image, body))


class PipelineHarness:
    """A pipeline and its worker threads, with a model whose forward passes a test can block.

    passes: the number of images of each pass. While `gate` is cleared, a pass blocks; `entered`
    is set when one starts. predictions: those of `predict_one`, as observed.
    """

    def __init__(
        self,
        model: EulerLoRA,
        extensions: Sequence[Extension],
        settings: dict[str, Any],
        others: Iterable[EulerLoRA] = (),
    ):
        self.served = ServedModel(model)
        self.models = ServedModels([self.served, *map(ServedModel, others)])
        chosen = ServiceSettings.model_validate(
            {"deadline_s": TIMEOUT_S, "max_pass_ms": MAX_PASS_MS, **settings}
        )
        self.queue = RequestQueue(chosen)
        self.workers = InferenceWorkers(
            self.queue, chosen.max_batch_s, on_batch=lambda *_: None, on_fatal=lambda _: None
        )
        self.decoder: Any = FakeDecoder()
        self.observation = RequestObservation("POST")
        self.predictions = self.observation.predictions
        self.pipeline = Pipeline(
            self.models,
            chosen,
            self.decoder,
            DecodingSlots(2, ClientQuota(chosen.decoding.client_s_per_minute, "s")),
            self.queue,
            extensions,
        )
        self.passes: list[int] = []
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()

    def _block(self, _: object, inputs: tuple[torch.Tensor, ...]) -> None:
        self.passes.append(len(inputs[0]))
        self.entered.set()
        assert self.gate.wait(TIMEOUT_S)

    @contextmanager
    def running(self) -> Iterator["PipelineHarness"]:
        backbone = self.served.model.network.backbone
        hook = backbone.conv_proj.register_forward_pre_hook(self._block)
        try:
            with self.workers.running():
                try:
                    yield self
                finally:
                    self.gate.set()
        finally:
            hook.remove()

    async def block_engine(self) -> "asyncio.Future[Any]":
        """Starts a pass that blocks the engine until the gate is set; returns its result."""
        self.gate.clear()
        self.entered.clear()
        item = InferenceItem(torch.zeros(3, 32, 32), Draw())
        future = self.workers.submit(self.served, item)
        assert await asyncio.to_thread(self.entered.wait, TIMEOUT_S)
        return asyncio.wrap_future(future)

    async def wait_for_rows(self, rows: int) -> None:
        """Returns once the queue has exactly `rows` rows, all of decoded images."""
        async with asyncio.timeout(TIMEOUT_S):
            while self.queue.rows != rows or self._is_decoding():
                await asyncio.sleep(0.005)

    def _is_decoding(self) -> bool:
        return any(not hasattr(ticket, "item") for ticket in list(self.queue._tickets))


async def predict_one(
    harness: PipelineHarness, body: bytes, query: PredictQuery = DET
) -> Prediction:
    answer = await harness.pipeline.predict(FakeRequest(body, harness.observation).request, query)
    assert isinstance(answer, Prediction)
    return answer

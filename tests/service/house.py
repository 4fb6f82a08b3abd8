"""A pipeline over a real model, whose passes and decoding a test can hold."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fastapi import Request

from eulerlora.model import EulerLoRA
from eulerlora.preprocess import resize
from eulerlora.seeds import content_seed
from eulerlora.settings import Draw
from service.decoding.decode import Declared, decode
from service.decoding.pool import Decoded
from service.inference.batcher import Batcher
from service.inference.engine import Question
from service.inference.models import ServedModel, ServedModels
from service.prediction.pipeline import Pipeline, Predicted
from service.schemas import PredictionBody, PredictQuery
from service.settings import ServiceSettings
from service.telemetry.events import Timing

TIMEOUT_S = 120
PATIENT = {"max_wait_s": TIMEOUT_S, "deadline_s": TIMEOUT_S}  # unless a test is about it
DET = PredictQuery()


class Sent:
    """A request with a body, and its client, who stays until `leave`."""

    def __init__(self, body: bytes) -> None:
        self._messages = [{"type": "http.request", "body": body, "more_body": False}]
        self._left = asyncio.Event()
        self.read = 0
        scope = {
            "type": "http",
            "method": "POST",
            "headers": [(b"content-type", b"image/png"), (b"content-length", b"%d" % len(body))],
            "state": {"request_id": "the-id"},
        }
        self.request = Request(scope, self._receive)

    async def _receive(self) -> Any:
        if self._messages:
            self.read += 1
            return self._messages.pop()
        await self._left.wait()
        return {"type": "http.disconnect"}

    def leave(self) -> None:
        self._left.set()


class HeldDecoder:
    """Decodes in this process. While `gate` is unset an image waits; `entered` is set when one
    does."""

    def __init__(self) -> None:
        self.gate, self.entered = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def decode(
        self, content: bytes, declared: Declared, size: int, revision: str, measured: bool = False
    ) -> Decoded:
        self.entered.set()
        await self.gate.wait()
        picture = decode(content, ServiceSettings().images, declared)
        seed = content_seed(picture.pixels, revision)
        return Decoded(resize(picture.pixels, size), seed, picture.warnings, 0.001)


class House:
    """A pipeline over a model whose passes a test can hold.

    passes: how many images each had. While `gate` is unset a pass waits; `entered` is set when
    one does.
    """

    def __init__(self, model: EulerLoRA, audit: Any, settings: dict[str, Any]):
        self.served = ServedModel.of(model)
        self.models = ServedModels([self.served])
        chosen = ServiceSettings.model_validate(PATIENT | settings)
        self.batcher = Batcher(chosen, ran=lambda _: None, on_fatal=lambda _: None)
        self.decoder: Any = HeldDecoder()
        self.told: list[tuple[PredictionBody, Timing]] = []
        self.refused: list[str] = []
        self.pipeline = Pipeline(
            self.models,
            chosen,
            self.decoder,
            self.batcher.room,
            lambda body, timing: self.told.append((body, timing)),
            self.refused.append,
            audit,
        )
        self.passes: list[int] = []
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()

    def _hold(self, _: object, inputs: tuple[torch.Tensor, ...]) -> None:
        self.passes.append(len(inputs[0]))
        self.entered.set()
        assert self.gate.wait(TIMEOUT_S)

    @contextmanager
    def open(self) -> Iterator["House"]:
        hook = self.served.model.network.register_forward_pre_hook(self._hold)
        try:
            with self.batcher.running():
                try:
                    yield self
                finally:
                    self.gate.set()
        finally:
            hook.remove()

    async def busy(self) -> "asyncio.Future[Any]":
        """A question whose pass now holds the engine until the gate is set."""
        self.gate.clear()
        self.entered.clear()
        question = Question(torch.zeros(3, 32, 32), Draw())
        running = self.batcher.submit(self.served.engine, question, time.monotonic() + TIMEOUT_S)
        assert await asyncio.to_thread(self.entered.wait, TIMEOUT_S)
        return asyncio.wrap_future(running)

    async def waiting(self, rows: int) -> None:
        """Returns once so many rows wait, and their questions are in the queue."""
        async with asyncio.timeout(TIMEOUT_S):
            while self.batcher.waiting_rows != rows or self._decoding():
                await asyncio.sleep(0.005)

    def _decoding(self) -> bool:
        room = self.batcher.room
        return any(place.question is None for place in list(room._places))


async def run_one(house: House, body: bytes, query: PredictQuery = DET) -> Predicted:
    return await house.pipeline.predict(Sent(body).request, query)

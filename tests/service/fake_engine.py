"""A fake engine and clock, and worker threads that a test can block."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from eulerlora.settings import Draw
from service.inference.engine import InferenceItem
from service.inference.queue import RequestQueue
from service.inference.workers import InferenceWorkers
from service.settings import ServiceSettings

TIMEOUT_S = 120  # for events that normally occur at once
MAX_PASS_MS = 10**9  # a test that blocks passes makes them appear slow
NO_DEADLINE = float("inf")
Futures = Sequence["Future[Any]"]


def item_of(value: int) -> InferenceItem:
    """An item of `value` rows; a fake engine's output for it is `value`."""
    return InferenceItem(torch.tensor(value), Draw(mode="stoch", samples=value))


class FakeClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class FakeEngine:
    """An engine whose output for an item is the item's value.

    batches: the values of each batch that ran, in order. error_of: returns the exception that a
    batch with these values raises, or None. While `gate` is cleared, a batch blocks; `entered` is
    set when a batch starts.
    """

    def __init__(self, name: str = "fake") -> None:
        self.name = name
        self.batches: list[list[int]] = []
        self.started: Callable[[list[int]], None] = lambda _: None
        self.error_of: Callable[[list[int]], Exception | None] = lambda _: None
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.max_rows_per_pass = 10**9
        self.adapters = 1

    def infer(self, items: Sequence[InferenceItem]) -> list[torch.Tensor]:
        values = [int(item.pixels) for item in items]
        self.batches.append(values)
        self.started(values)
        self.entered.set()
        assert self.gate.wait(TIMEOUT_S)
        error = self.error_of(values)
        if error is not None:
            raise error
        return [item.pixels for item in items]


class WorkersHarness:
    """Worker threads with a fake engine, which records the calls of its callbacks."""

    def __init__(self, workers: int = 1, **settings: Any) -> None:
        self.engine: Any = FakeEngine()
        self.runs: list[tuple[Any, float]] = []
        self.fatal: list[Exception] = []
        self.failed = threading.Event()
        chosen = ServiceSettings(**{"max_batch_rows": 6, "max_pass_ms": MAX_PASS_MS, **settings})
        self.queue = RequestQueue(chosen, workers)
        self.workers = InferenceWorkers(
            self.queue, chosen.max_batch_s, self._record, self._fail, workers
        )

    def _record(self, batch: object, seconds: float) -> None:
        self.runs.append((batch, seconds))

    def _fail(self, error: Exception) -> None:
        self.fatal.append(error)
        self.failed.set()

    def submit(self, *values: int) -> list["Future[Any]"]:
        return [self.workers.submit(self.engine, item_of(value)) for value in values]

    def block_with(self, value: int) -> "Future[Any]":
        """The future of an item whose batch blocks a worker until the gate is set."""
        self.engine.gate.clear()
        self.engine.entered.clear()
        future = self.submit(value)[0]
        assert self.engine.entered.wait(TIMEOUT_S)
        return future


def values_of(futures: Futures) -> list[int]:
    """Waits for the futures and returns their values."""
    return [int(future.result(TIMEOUT_S).trajectories) for future in futures]

"""An engine of numbers in place of a model, and a batcher whose threads a test can hold."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from eulerlora.settings import Draw
from service.inference.batcher import Batcher
from service.inference.engine import Question
from service.inference.ticket import Answered
from service.settings import ServiceSettings
from service.telemetry.events import BatchRun

TIMEOUT_S = 20  # how long a test waits for what should come at once
LATER = float("inf")  # a deadline that never passes
Futures = Sequence["Future[Answered]"]


def number(value: int) -> Question:
    """A question of `value` rows, whose answer is `value`."""
    return Question(torch.tensor(value), Draw(mode="stoch", samples=value))


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Numbers:
    """An engine: a question's rows are its value, and so is its answer.

    batches: the values of every batch that ran, in order. raises: what a batch raises, if
    anything, told by its values. While `gate` is unset a batch waits; `entered` is set when one
    does.
    """

    def __init__(self, name: str = "numbers") -> None:
        self.name = name
        self.batches: list[list[int]] = []
        self.raises: Callable[[list[int]], Exception | None] = lambda _: None
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    rows_at_once = 10**9

    def rows(self, samples: int) -> int:
        return samples

    def answer(self, questions: Sequence[Question]) -> list[torch.Tensor]:
        values = [int(question.pixels) for question in questions]
        self.batches.append(values)
        self.entered.set()
        assert self.gate.wait(TIMEOUT_S)
        error = self.raises(values)
        if error is not None:
            raise error
        return [question.pixels for question in questions]


class Stage:
    """A batcher of numbers, with what it told of its batches and of its end."""

    def __init__(self, lanes: int = 1, **settings: Any) -> None:
        self.engine: Any = Numbers()
        self.runs: list[BatchRun] = []
        self.fatal: list[Exception] = []
        self.ended = threading.Event()
        chosen = ServiceSettings(**{"max_batch_rows": 6, **settings})
        self.batcher = Batcher(chosen, self.runs.append, self._end, lanes)

    def _end(self, error: Exception) -> None:
        self.fatal.append(error)
        self.ended.set()

    def submit(self, *values: int) -> list["Future[Answered]"]:
        return [self.batcher.submit(self.engine, number(value), LATER) for value in values]

    def blocked_by(self, value: int) -> "Future[Answered]":
        """The future of a question whose batch now holds the thread until `gate` is set."""
        self.engine.gate.clear()
        self.engine.entered.clear()
        future = self.submit(value)[0]
        assert self.engine.entered.wait(TIMEOUT_S)
        return future


def answers(futures: Futures) -> list[int]:
    """The values that the futures hold, waited for."""
    return [int(future.result(TIMEOUT_S).log_probabilities) for future in futures]

"""Gathers waiting questions into batches, by rows, for one thread that runs the model.

A batch starts as soon as the thread is idle; what arrives while it works forms the next one.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answered(Generic[Answer]):
    """An answer with the seconds its question waited and the seconds its batch ran."""

    answer: Answer
    queued_s: float
    ran_s: float


@dataclass(eq=False)
class _Waiting(Generic[Question, Answer]):
    question: Question
    rows: int
    future: "Future[Answered[Answer]]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


class Batcher(Generic[Question, Answer]):
    """A queue of questions and the thread that answers them.

    answer: a batch of questions -> their answers in order; only ever called by the thread.
    rows: how many rows of `max_rows` a question takes; one that takes more runs alone.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Question]], Sequence[Answer]],
        rows: Callable[[Question], int],
        max_rows: int,
    ) -> None:
        self._answer = answer
        self._rows = rows
        self._max_rows = max_rows
        self._waiting: deque[_Waiting[Question, Answer]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Takes no more questions, answers those that wait, and ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def submit(self, question: Question) -> "Future[Answered[Answer]]":
        """A future of the answer. Cancelling it before its batch starts drops the question.

        Raises RuntimeError once the batcher is closed.
        """
        waiting: _Waiting[Question, Answer] = _Waiting(question, self._rows(question))
        with self._changed:
            if self._closing:
                raise RuntimeError("the batcher is closed")
            self._waiting.append(waiting)
            self._changed.notify()
        return waiting.future

    def _work(self) -> None:
        while batch := self._next_batch():
            wanted = [each for each in batch if each.future.set_running_or_notify_cancel()]
            if wanted:
                self._run(wanted)

    def _next_batch(self) -> list[_Waiting[Question, Answer]]:
        """The longest run of waiting questions within the row budget; empty once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            batch: list[_Waiting[Question, Answer]] = []
            rows = 0
            while self._waiting and (not batch or rows + self._waiting[0].rows <= self._max_rows):
                batch.append(self._waiting.popleft())
                rows += batch[-1].rows
            return batch

    def _run(self, batch: list[_Waiting[Question, Answer]]) -> None:
        started = time.monotonic()
        try:
            answers = list(self._answer([each.question for each in batch]))
            assert len(answers) == len(batch)
        except Exception as error:
            logger.exception("a batch of %d questions failed", len(batch))
            for each in batch:
                each.future.set_exception(error)
            return
        ran = time.monotonic() - started
        for each, answer in zip(batch, answers, strict=True):
            each.future.set_result(Answered(answer, started - each.since, ran))

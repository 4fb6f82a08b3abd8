"""The threads that run the models, on batches of the questions that wait.

A batch starts as soon as a thread is idle; what arrives while all work forms the next ones.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from service.errors import Problem
from service.inference.cores import Cores
from service.inference.device_errors import DeviceFailed
from service.inference.engine import Engine, Question
from service.inference.queue import WaitingRoom
from service.inference.retry import outcomes
from service.inference.throughput import Pace
from service.inference.ticket import Answered, Batch, Place
from service.settings import ServiceSettings
from service.telemetry.events import BatchRun

logger = logging.getLogger(__name__)

LOOKS = 10  # of the watching thread, in the longest time that a pass may take


class Batcher:
    """The questions of all served models, and the threads that answer them.

    A batch holds questions of one engine, the oldest first, within the row budget; a question
    over the budget runs alone. ran: told of every batch. on_fatal: told once of a lost device or
    a pass without an end; nothing is run after it, and every question gets NotReady. Both are
    called from the batcher's own threads and must not wait for it. lanes: how many batches run
    at the same time, none of which waits for another.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        ran: Callable[[BatchRun], None],
        on_fatal: Callable[[Exception], None],
        lanes: int = 1,
    ) -> None:
        self.room = WaitingRoom(settings, lanes, Pace())
        self._max_batch_s = settings.max_batch_s
        self._ran = ran
        self._on_fatal = on_fatal
        self._cores = Cores()
        self._passes: dict[int, float] = {}  # when each began, by its thread
        self._at_work = lanes
        self._ended = threading.Event()
        self._changing = threading.Lock()
        self._failed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"engine-{lane}", daemon=True)
            for lane in range(lanes)
        ]
        self._watcher = threading.Thread(target=self._watch, name="engine-watch", daemon=True)

    @property
    def waiting_rows(self) -> int:
        """Rows of accepted questions that do not run yet."""
        return self.room.rows

    @property
    def waiting_questions(self) -> int:
        """Accepted questions that do not run yet."""
        return self.room.questions

    @contextmanager
    def running(self) -> Iterator[None]:
        """Answers questions; on the way out, those that were accepted, and no more."""
        for thread in (*self._threads, self._watcher):
            thread.start()
        try:
            yield
        finally:
            self.room.close()
            self._ended.wait()
            self._watcher.join()
            if not self._failed:  # the thread of a batch without an end cannot be waited for
                for thread in self._threads:
                    thread.join()

    @contextmanager
    def places(self, engine: Engine, rows: int, count: int = 1) -> Iterator[list[Place]]:
        """Room for so many questions of so many rows each, free again on the way out at the latest.

        Raises Overloaded where there is not room for all, and NotReady.
        """
        places = self.room.enter(engine, rows, count)
        try:
            yield places
        finally:
            for place in places:
                self.room.leave(place)

    def submit(self, engine: Engine, question: Question, deadline: float) -> "Future[Answered]":
        """A future of the answer to a question of the service's own, never refused for load.

        deadline: on the monotonic clock. Cancelling the future before its batch starts drops the
        question. Raises NotReady.
        """
        place = Place(engine, engine.rows(question.draw.count))
        self.room.ask(place, question, deadline)
        return place.future

    def _work(self) -> None:
        try:
            while batch := self.room.next_batch():
                self._run(batch)
        except Exception as error:
            self._fail(error)
        with self._changing:
            self._at_work -= 1
            if not self._at_work:
                self._ended.set()

    def _run(self, batch: Batch) -> None:
        started = time.monotonic()
        with self._cores.share():
            found = outcomes(partial(self._pass, batch.engine), batch.questions)
        seconds = time.monotonic() - started
        self.room.ended(batch)
        self._ran(BatchRun(batch.engine.name, batch.rows, len(batch.places), seconds))
        for place, outcome in zip(batch.places, found, strict=True):
            if isinstance(outcome, Problem):
                place.settle(outcome)
            else:
                place.settle(Answered(outcome, started - place.since, seconds))

    def _pass(self, engine: Engine, questions: Sequence[Question]) -> list[Tensor]:
        lane = threading.get_ident()
        self._passes[lane] = time.monotonic()
        try:
            return engine.answer(questions)
        finally:
            del self._passes[lane]

    def _watch(self) -> None:
        while not self._ended.wait(self._max_batch_s / LOOKS):
            longest_s = time.monotonic() - min(self._passes.copy().values(), default=math.inf)
            if longest_s > self._max_batch_s:
                self._fail(DeviceFailed(f"a pass runs for more than {self._max_batch_s:g} s"))

    def _fail(self, error: Exception) -> None:
        with self._changing:
            first, self._failed = not self._failed, True
        if first:
            logger.critical("nothing more is run: %s", error, exc_info=error)
            self.room.clear("the device failed")
            self._ended.set()
            self._on_fatal(error)

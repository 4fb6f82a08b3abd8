"""How long work takes, from the batches that ran."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from service.inference.engine import Engine
from service.inference.ticket import Batch

KEPT = 0.9  # of what is known so far, at each batch: twenty batches make up nine tenths of it
MOST_MORE = 4.0  # times what was expected, that a batch is taken for: the machine may have stood


class Pace:
    """Seconds that batches take, of the device as a whole: those that run at the same time share
    it in equal parts.

    now: a clock in seconds. Not to be used by several threads at once.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lines: WeakKeyDictionary[Engine, Line] = WeakKeyDictionary()
        self._running: dict[Batch, float] = {}  # what each has had of the device
        self._shared_at = now()

    def started(self, batch: Batch) -> None:
        """The batch runs from now on."""
        self._share()
        self._running[batch] = 0.0

    def ended(self, batch: Batch) -> None:
        """The batch has run; what it took is taken into account."""
        self._share()
        line = self._lines.setdefault(batch.engine, Line())
        line.learn(batch.rows, self._running.pop(batch))

    def seconds(self, engine: Engine, rows: int, batches: int) -> float:
        """How long so many rows in so many batches will take; 0 for an engine that has not run."""
        line = self._lines.get(engine)
        return 0.0 if line is None else line.at(rows, batches)

    def left(self) -> float:
        """How long what runs will take from now."""
        self._share()
        return sum(
            max(0.0, self.seconds(batch.engine, batch.rows, 1) - had)
            for batch, had in self._running.items()
        )

    def _share(self) -> None:
        now = self._now()
        for batch in self._running:
            self._running[batch] += (now - self._shared_at) / len(self._running)
        self._shared_at = now


@dataclass
class Line:
    """Seconds of a batch by its rows: a part that every batch takes, and one for each row.

    Least squares, the latest batches weighing most; neither part is negative. Where all batches
    had as many rows, what they took is taken for the rows' part. The fields are weighted sums:
    of the batches themselves, of their rows, seconds, rows squared, and rows times seconds.
    """

    batches: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0
    rows_rows: float = 0.0
    rows_seconds: float = 0.0

    def learn(self, rows: int, seconds: float) -> None:
        """Takes a batch into account."""
        if self.seconds > 0:
            seconds = min(seconds, MOST_MORE * self.at(rows, 1))
        self.batches = KEPT * self.batches + 1
        self.rows = KEPT * self.rows + rows
        self.seconds = KEPT * self.seconds + seconds
        self.rows_rows = KEPT * self.rows_rows + rows * rows
        self.rows_seconds = KEPT * self.rows_seconds + rows * seconds

    def at(self, rows: int, batches: int) -> float:
        """The seconds of so many rows in so many batches."""
        per_row = self._per_row()
        per_batch = (self.seconds - per_row * self.rows) / self.batches
        return per_batch * batches + per_row * rows

    def _per_row(self) -> float:
        most = self.seconds / self.rows  # with more, a batch without rows would take less than 0
        spread = self.batches * self.rows_rows - self.rows**2
        if math.isclose(spread, 0.0, abs_tol=1e-6 * self.rows**2):
            return most
        found = (self.batches * self.rows_seconds - self.rows * self.seconds) / spread
        return min(max(found, 0.0), most)

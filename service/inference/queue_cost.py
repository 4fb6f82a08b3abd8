"""The cost of batches: how long those of the queue will take on the device.

`LinearCost` learns from pairs of rows and seconds, and predicts the seconds of any number of
batches and rows. `ThroughputEstimate` learns one for every model from the start and end of its
batches, and knows what the running ones have left. Neither runs or orders anything.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

__all__ = ["LinearCost", "ThroughputEstimate"]

_DECAY = 0.9  # weight of the past at each batch; the last 20 batches have 9/10 of the weight
_MAX_OVERRUN = 4.0  # a batch counts for at most this times its estimate: machines may pause


class _Batch(Protocol):
    """Rows of one model that run together."""

    @property
    def served(self) -> object: ...

    @property
    def rows(self) -> int: ...


class ThroughputEstimate:
    """Estimates the device time of batches; batches that run at the same time share it equally.

    Not thread-safe. `now`: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._costs: WeakKeyDictionary[object, LinearCost] = WeakKeyDictionary()
        self._running: dict[_Batch, float] = {}  # device seconds of each running batch so far
        self._updated_at = now()

    def start(self, batch: _Batch) -> None:
        """The batch starts now."""
        self._update()
        self._running[batch] = 0.0

    def finish(self, batch: _Batch) -> None:
        """The batch ends now; learns from its device time."""
        self._update()
        cost = self._costs.setdefault(batch.served, LinearCost())
        cost.add(batch.rows, self._running.pop(batch))

    def seconds(self, served: object, rows: int, batches: int) -> float:
        """The estimated time of `rows` rows in `batches` batches; 0 if none has run."""
        cost = self._costs.get(served)
        return 0.0 if cost is None else cost.seconds(rows, batches)

    def rows_within(self, served: object, seconds: float) -> float:
        """The rows of a batch that runs for `seconds`; infinity if none has run."""
        cost = self._costs.get(served)
        return math.inf if cost is None else cost.rows_within(seconds)

    def remaining_s(self) -> float:
        """The estimated time until all running batches have ended."""
        self._update()
        return sum(
            max(0.0, self.seconds(batch.served, batch.rows, 1) - spent_s)
            for batch, spent_s in self._running.items()
        )

    def _update(self) -> None:
        now = self._now()
        for batch in self._running:
            self._running[batch] += (now - self._updated_at) / len(self._running)
        self._updated_at = now


@dataclass
class LinearCost:
    """Seconds of a batch as a linear function of its rows, fitted by weighted least squares.

    Recent batches weigh most; intercept and slope are not negative. If all batches had the same
    number of rows, the intercept is 0. All fields are weighted sums over the batches.

    Attributes:
        batches: Their number.
        total_s: Of their seconds.
        rows_rows: Of their rows squared.
        rows_seconds: Of rows times seconds.
    """

    batches: float = 0.0
    rows: float = 0.0
    total_s: float = 0.0
    rows_rows: float = 0.0
    rows_seconds: float = 0.0

    def add(self, rows: int, seconds: float) -> None:
        if self.total_s > 0:
            seconds = min(seconds, _MAX_OVERRUN * self.seconds(rows, 1))
        self.batches = _DECAY * self.batches + 1
        self.rows = _DECAY * self.rows + rows
        self.total_s = _DECAY * self.total_s + seconds
        self.rows_rows = _DECAY * self.rows_rows + rows * rows
        self.rows_seconds = _DECAY * self.rows_seconds + rows * seconds

    def seconds(self, rows: int, batches: int) -> float:
        slope = self._slope()
        intercept = (self.total_s - slope * self.rows) / self.batches
        return intercept * batches + slope * rows

    def rows_within(self, seconds: float) -> float:
        """The rows of one batch of `seconds`, at least 0; infinity without a slope."""
        slope = self._slope()
        return max(0.0, seconds - self.seconds(0, 1)) / slope if slope > 0 else math.inf

    def _slope(self) -> float:
        max_slope = self.total_s / self.rows  # a larger slope makes the intercept negative
        spread = self.batches * self.rows_rows - self.rows**2
        if math.isclose(spread, 0.0, abs_tol=1e-6 * self.rows**2):
            return max_slope
        slope = (self.batches * self.rows_seconds - self.rows * self.total_s) / spread
        return min(max(slope, 0.0), max_slope)

"""How long rows take, from the batches that ran."""

from weakref import WeakKeyDictionary

from service.engine import Engine

KEPT = 0.8  # of what is known so far, at each batch: ten batches make up nine tenths of a figure


class Pace:
    """Seconds per row of each engine; recent batches and large ones weigh most."""

    def __init__(self) -> None:
        self._seconds: WeakKeyDictionary[Engine, float] = WeakKeyDictionary()
        self._rows: WeakKeyDictionary[Engine, float] = WeakKeyDictionary()

    def learn(self, engine: Engine, rows: int, seconds: float) -> None:
        """Takes a batch into account."""
        self._seconds[engine] = KEPT * self._seconds.get(engine, 0.0) + seconds
        self._rows[engine] = KEPT * self._rows.get(engine, 0.0) + rows

    def seconds(self, engine: Engine, rows: int) -> float:
        """How long so many rows will take; 0 for an engine that has not run yet."""
        known = self._rows.get(engine)
        return self._seconds[engine] / known * rows if known else 0.0

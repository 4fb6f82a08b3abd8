"""Where questions wait for the engine: bounded by rows and by time, oldest first."""

import math
import threading
import time
from bisect import insort
from collections import Counter, deque

from service.errors import DeadlinePassed, NotReady, Overloaded
from service.inference.engine import Engine, Question
from service.inference.throughput import Pace
from service.inference.ticket import Batch, Place
from service.settings import ServiceSettings


class WaitingRoom:
    """Places taken and questions asked, by engine; any thread may call any method.

    settings: max_waiting_rows, of all places; max_wait_s, of the estimate of how long those that
    are there will take; max_batch_rows. An empty room lets any question in. lanes: how many
    batches may run at the same time.
    """

    def __init__(self, settings: ServiceSettings, lanes: int, pace: Pace) -> None:
        self._settings = settings
        self._lanes = lanes
        self._pace = pace
        self._places: set[Place] = set()
        self._rows: Counter[Engine] = Counter()  # of the places
        self._asked: dict[Engine, deque[Place]] = {}
        self._running: set[Batch] = set()
        self._changed = threading.Condition()
        self._refusal: str | None = None

    @property
    def rows(self) -> int:
        """Rows of all places, those whose image is still being decoded included."""
        with self._changed:
            return self._rows.total()

    @property
    def questions(self) -> int:
        """How many places are taken; one that is asked in parts counts until it is left."""
        with self._changed:
            return sum(place.whole is None for place in self._places)

    def wait_s(self) -> float:
        """How long everything that waits or runs will take, by what past batches took."""
        with self._changed:
            return self._pace.left() + sum(
                self._pace.seconds(engine, rows, math.ceil(rows / self._batch_rows(engine)))
                for engine, rows in self._rows.items()
            )

    def load(self, rows: int = 0) -> float:
        """How full the room would be with so many rows more; over 1 is too full."""
        with self._changed:
            return max(
                (self.rows + rows) / self._settings.max_waiting_rows,
                self.wait_s() / self._settings.max_wait_s,
            )

    def check(self, rows: int) -> None:
        """Raises Overloaded where there is no room for so many rows, NotReady where for none."""
        with self._changed:
            if self._refusal is not None:
                raise NotReady(self._refusal)
            if self._places and self.load(rows) > 1:
                raise Overloaded("more work waits than can be done in time", self.wait_s())

    def enter(self, engine: Engine, rows: int, count: int = 1) -> list[Place]:
        """So many places, all of them or none. Raises as `check`."""
        with self._changed:
            self.check(rows * count)
            places = [Place(engine, rows) for _ in range(count)]
            for place in places:
                self._add(place)
            return places

    def part(self, place: Place, rows: int) -> Place:
        """A part of a place that is taken; so many rows are there, whether it has them or not."""
        with self._changed:
            self._remove(place)
            place.rows = max(0, place.rows - rows)
            part = Place(place.engine, rows, whole=place)
            for each in (place, part):
                self._add(each)
            return part

    def ask(
        self, place: Place, question: Question, deadline: float, since: float | None = None
    ) -> None:
        """Puts a question into the queue, whether its place was taken before or not.

        deadline, since: on the monotonic clock. It comes after those that were asked by `since`,
        None for now. Raises NotReady.
        """
        with self._changed:
            if self._refusal is not None:
                raise NotReady(self._refusal)
            place.question, place.deadline = question, deadline
            place.since = time.monotonic() if since is None else since
            self._add(place)
            queue = self._asked.setdefault(place.engine, deque())
            insort(queue, place, key=lambda each: each.since)
            self._changed.notify()

    def leave(self, place: Place) -> None:
        """Frees the place's rows; a question that does not run yet never will."""
        with self._changed:
            self._remove(place)
            place.future.cancel()
            queue = self._asked.get(place.engine, deque())
            if place in queue:
                queue.remove(place)
                if not queue:
                    del self._asked[place.engine]

    def next_batch(self) -> Batch | None:
        """The oldest question and those of the same engine after it, as far as they fit; it runs
        from now on.

        Waits for a question. None once the room is closed and nobody waits.
        """
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._asked or self._refusal is not None)
                if not self._asked:
                    return None
                places = self._oldest()
                if places:
                    batch = Batch(places)
                    self._running.add(batch)
                    self._pace.started(batch)
                    return batch

    def ended(self, batch: Batch) -> None:
        """The batch has run."""
        with self._changed:
            self._running.remove(batch)
            self._pace.ended(batch)

    def close(self) -> None:
        """Lets nobody in any more; who waits is still answered."""
        with self._changed:
            self._refusal = self._refusal or "the service is stopping"
            self._changed.notify_all()

    def clear(self, refusal: str) -> None:
        """Lets nobody in any more; whoever waits, or runs, gets NotReady."""
        with self._changed:
            self._refusal = refusal
            running = [place for batch in self._running for place in batch.places]
            for place in (*self._places, *running):
                place.settle(NotReady(refusal))
            self._asked.clear()
            self._changed.notify_all()

    def _add(self, place: Place) -> None:
        if place not in self._places:
            self._places.add(place)
            self._rows[place.engine] += place.rows

    def _remove(self, place: Place) -> None:
        if place in self._places:
            self._places.remove(place)
            self._rows[place.engine] -= place.rows
            if not self._rows[place.engine]:
                del self._rows[place.engine]  # a replaced engine's memory is wanted back

    def _oldest(self) -> list[Place]:
        """The places of the next batch, which are free again; empty where all came too late.

        A lane takes its share of what waits, so that the others have something to do as well.
        """
        engine = min(self._asked, key=lambda each: self._asked[each][0].since)
        queue = self._asked[engine]
        share = math.ceil(sum(place.rows for place in queue) / self._lanes)
        max_rows = min(share, self._batch_rows(engine))
        batch: list[Place] = []
        rows = 0
        while queue and (not batch or rows + queue[0].rows <= max_rows):
            place = queue.popleft()
            self._remove(place)
            if place.deadline <= time.monotonic():
                place.settle(DeadlinePassed("the deadline passed while the question waited"))
            elif place.future.set_running_or_notify_cancel():
                batch.append(place)
                rows += place.rows
        if not queue:
            del self._asked[engine]
        return batch

    def _batch_rows(self, engine: Engine) -> int:
        """Rows of a batch, at most; a question of more runs alone.

        What the engine passes at once is for the whole device: the lanes share its caches.
        """
        return max(1, min(self._settings.max_batch_rows, engine.rows_at_once // self._lanes))

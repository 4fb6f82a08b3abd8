"""The request queue: reserved and waiting items, bounded by rows and by estimated time."""

import math
import threading
import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager

from eulerlora_client.contract.problems import DeadlinePassed, NotReady, Overloaded
from service.inference.engine import Engine, InferenceItem
from service.inference.throughput import ThroughputEstimate
from service.inference.ticket import Batch, Ticket
from service.settings import ServiceSettings


class RequestQueue:
    """Tickets by engine, oldest first; owns the capacity of the service. Thread-safe.

    settings: max_waiting_rows limits the rows of all tickets, deadline_s the estimated time until
    they have run; max_batch_rows limits a batch. An empty queue admits an item of any size.
    workers: the number of batches that may run at the same time.
    """

    def __init__(
        self, settings: ServiceSettings, workers: int, throughput: ThroughputEstimate
    ) -> None:
        self._settings = settings
        self._workers = workers
        self._throughput = throughput
        self._tickets: set[Ticket] = set()
        self._rows: Counter[Engine] = Counter()  # of `_tickets`
        self._waiting: dict[Engine, deque[Ticket]] = {}  # tickets with an item, oldest first
        self._running: set[Batch] = set()
        self._changed = threading.Condition()
        self._refusal: str | None = None

    @property
    def rows(self) -> int:
        """Rows of all tickets, including those whose image is being decoded."""
        with self._changed:
            return self._rows.total()

    @property
    def items(self) -> int:
        """The number of tickets; an item that runs in rounds counts once."""
        with self._changed:
            return sum(ticket.parent is None for ticket in self._tickets)

    def wait_s(self, engine: Engine | None = None, rows: int = 0) -> float:
        """Returns the estimated seconds until all accepted work has run.

        engine, rows: additional work to include.
        """
        with self._changed:
            rows_by_engine = self._rows.copy()
            if engine is not None:
                rows_by_engine[engine] += rows
            return self._throughput.remaining_s() + sum(
                self._throughput.seconds(queued, total, math.ceil(total / self._batch_rows(queued)))
                for queued, total in rows_by_engine.items()
            )

    def utilization(self, rows: int = 0, engine: Engine | None = None) -> float:
        """Returns the used fraction of the capacity with `rows` more rows; above 1 is overload."""
        with self._changed:
            return max(
                (self.rows + rows) / self._settings.max_waiting_rows,
                self.wait_s(engine, rows) / self._settings.deadline_s,
            )

    def check_capacity(self, rows: int = 1, engine: Engine | None = None) -> None:
        """Raises Overloaded if `rows` more rows exceed the capacity, NotReady if it is closed.

        engine: the engine of the rows, to include their run time.
        """
        with self._changed:
            if self._refusal is not None:
                raise NotReady(self._refusal)
            if self._tickets and self.utilization(rows, engine) > 1:
                detail = "the accepted requests take longer than the deadline allows"
                raise Overloaded(detail, self.wait_s())

    @contextmanager
    def reserve(self, engine: Engine, rows: int, count: int = 1) -> Iterator[list[Ticket]]:
        """Yields `count` tickets of `rows` rows each, and releases them on exit.

        Raises Overloaded if there is no capacity for all of them, and NotReady.
        """
        with self._changed:
            self.check_capacity(rows * count, engine)
            tickets = [Ticket(engine, rows) for _ in range(count)]
            for ticket in tickets:
                self._add(ticket)
        try:
            yield tickets
        finally:
            for ticket in tickets:
                self.release(ticket)

    def split(self, ticket: Ticket, rows: int) -> Ticket:
        """Moves rows of a reserved ticket to a new ticket for one round, and returns it.

        The new ticket gets `rows` rows even if the reservation has fewer left.
        """
        with self._changed:
            self._remove(ticket)
            ticket.rows = max(0, ticket.rows - rows)
            part = Ticket(ticket.engine, rows, parent=ticket)
            self._add(ticket)
            self._add(part)
            return part

    def enqueue(
        self, ticket: Ticket, item: InferenceItem, deadline: float, queued_at: float | None = None
    ) -> None:
        """Adds an item to the queue, with or without an earlier reservation.

        deadline, queued_at: on the monotonic clock. The item follows those that were queued at or
        before `queued_at`, by default now. Raises NotReady.
        """
        with self._changed:
            if self._refusal is not None:
                raise NotReady(self._refusal)
            ticket.item, ticket.deadline = item, deadline
            ticket.queued_at = time.monotonic() if queued_at is None else queued_at
            self._add(ticket)
            waiting = self._waiting.setdefault(ticket.engine, deque())
            insort(waiting, ticket, key=lambda other: other.queued_at)
            self._changed.notify()

    def release(self, ticket: Ticket) -> None:
        """Frees the ticket's rows; removes its item if it has not started."""
        with self._changed:
            self._remove(ticket)
            ticket.future.cancel()
            waiting = self._waiting.get(ticket.engine, deque())
            if ticket in waiting:
                waiting.remove(ticket)
                if not waiting:
                    del self._waiting[ticket.engine]

    def next_batch(self) -> Batch | None:
        """Waits for and starts a batch: the oldest item and those of its engine that fit.

        Returns None once the queue is closed and empty.
        """
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._refusal is not None)
                if not self._waiting:
                    return None
                tickets = self._take_oldest()
                if tickets:
                    batch = Batch(tickets)
                    self._running.add(batch)
                    self._throughput.start(batch)
                    return batch

    def finish(self, batch: Batch) -> None:
        """Records that a batch has run."""
        with self._changed:
            self._running.remove(batch)
            self._throughput.finish(batch)

    def close(self) -> None:
        """Stops admitting items; those in the queue still run."""
        with self._changed:
            self._refusal = self._refusal or "the service is stopping"
            self._changed.notify_all()

    def abort(self, reason: str) -> None:
        """Stops admitting items and resolves all waiting and running ones with NotReady."""
        with self._changed:
            self._refusal = reason
            running = [ticket for batch in self._running for ticket in batch.tickets]
            for ticket in (*self._tickets, *running):
                ticket.resolve(NotReady(reason))
            self._waiting.clear()
            self._changed.notify_all()

    def _add(self, ticket: Ticket) -> None:
        if ticket not in self._tickets:
            self._tickets.add(ticket)
            self._rows[ticket.engine] += ticket.rows

    def _remove(self, ticket: Ticket) -> None:
        if ticket in self._tickets:
            self._tickets.remove(ticket)
            self._rows[ticket.engine] -= ticket.rows
            if not self._rows[ticket.engine]:
                del self._rows[ticket.engine]  # do not keep a replaced engine in memory

    def _take_oldest(self) -> list[Ticket]:
        """Removes and returns the tickets of the next batch; empty if all deadlines have passed.

        A batch takes at most one worker's part of the waiting rows, so that no worker is idle.
        """
        engine = min(self._waiting, key=lambda engine: self._waiting[engine][0].queued_at)
        waiting = self._waiting[engine]
        rows_per_worker = math.ceil(sum(ticket.rows for ticket in waiting) / self._workers)
        max_rows = min(rows_per_worker, self._batch_rows(engine))
        batch: list[Ticket] = []
        rows = 0
        while waiting and (not batch or rows + waiting[0].rows <= max_rows):
            ticket = waiting.popleft()
            self._remove(ticket)
            if ticket.deadline <= time.monotonic():
                ticket.resolve(DeadlinePassed("the deadline passed while the request was queued"))
            elif ticket.future.set_running_or_notify_cancel():
                batch.append(ticket)
                rows += ticket.rows
        if not waiting:
            del self._waiting[engine]
        return batch

    def _batch_rows(self, engine: Engine) -> int:
        """Returns the maximum rows of a batch; a larger item runs alone.

        The engine's limit is for the whole device, whose caches the workers share.
        """
        return max(1, min(self._settings.max_batch_rows, engine.max_rows_per_pass // self._workers))

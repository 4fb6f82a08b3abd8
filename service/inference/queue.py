"""The request queue: reserved and waiting items, shared fairly between clients and requests."""

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from eulerlora_client.contract.problems import DeadlinePassed, NotReady, Overloaded
from service.inference.engine import Engine, InferenceItem
from service.inference.throughput import ThroughputEstimate
from service.inference.ticket import Batch, Ticket
from service.scheduling.clients import Flow
from service.scheduling.fair_queue import FairQueue
from service.scheduling.recent_clients import RecentClients
from service.scheduling.shared_capacity import SharedCapacity
from service.settings import ServiceSettings

SMALLEST_ROWS = 2  # of a usual request; its real rows are not known yet


class RequestQueue:
    """Tickets in fair order; owns the capacity of the service. Thread-safe.

    settings: max_waiting_rows limits the rows of all tickets, deadline_s the estimated time until
    those of a request have run, max_batch_rows and max_pass_ms a batch. An empty queue admits an
    item of any size. workers: the number of batches that may run at the same time.
    """

    def __init__(
        self, settings: ServiceSettings, workers: int, throughput: ThroughputEstimate
    ) -> None:
        self._settings = settings
        self._workers = workers
        self._throughput = throughput
        self._tickets: set[Ticket] = set()
        self._rows: Counter[Engine] = Counter()  # of `_tickets`
        self._capacity = SharedCapacity(settings.max_waiting_rows)  # of `_tickets`
        self._waiting: FairQueue[Ticket] = FairQueue()  # tickets with an item
        self._running: set[Batch] = set()
        self._recent = RecentClients()
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

    def wait_s(
        self, flow: Flow | None = None, engine: Engine | None = None, rows: int = 0
    ) -> float:
        """Returns the estimated seconds until all accepted work has run.

        flow: until that of this request has run, with `rows` more rows of `engine`; without an
        engine, with those of a small request. Other requests and clients then count only as far
        as fair sharing lets them run before.
        """
        with self._changed:
            rows_by_engine = self._rows.copy()
            if engine is not None:
                rows_by_engine[engine] += rows
            total = rows_by_engine.total()
            before: float = total
            if flow is not None:
                needed = SMALLEST_ROWS if engine is None else rows
                before = min(total, self._capacity.finish_work(flow, needed))
            return self._throughput.remaining_s() + sum(
                self._estimate_s(queued, math.ceil(waiting * before / total))
                for queued, waiting in rows_by_engine.items()
            )

    def utilization(self, flow: Flow, rows: int = 0, engine: Engine | None = None) -> float:
        """Returns the used fraction of what a request may use with `rows` more rows.

        Above 1 it is refused.
        """
        with self._changed:
            return max(
                self._capacity.utilization(flow, rows),
                self.wait_s(flow, engine, rows) / self._settings.deadline_s,
            )

    def check_capacity(self, flow: Flow, rows: int = 1, engine: Engine | None = None) -> None:
        """Raises Overloaded if `rows` more rows exceed the capacity, NotReady if it is closed.

        engine: the engine of the rows, to include their run time.
        """
        with self._changed:
            if self._refusal is not None:
                raise NotReady(self._refusal)
            if self._tickets and self.utilization(flow, rows, engine) > 1:
                detail = "the accepted requests take longer than the deadline allows"
                raise Overloaded(detail, self.wait_s(flow))

    @contextmanager
    def reserve(
        self, flow: Flow, engine: Engine, rows: int, count: int = 1
    ) -> Iterator[list[Ticket]]:
        """Yields `count` tickets of `rows` rows each, and releases them on exit.

        Raises Overloaded if there is no capacity for all of them, and NotReady.
        """
        with self._changed:
            self.check_capacity(flow, rows * count, engine)
            self._recent.note(flow.client)
            tickets = [Ticket(engine, rows, flow) for _ in range(count)]
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
            part = Ticket(ticket.engine, rows, ticket.flow, parent=ticket)
            self._add(ticket)
            self._add(part)
            return part

    def enqueue(
        self, ticket: Ticket, item: InferenceItem, deadline: float, queued_at: float | None = None
    ) -> None:
        """Adds an item to the queue, with or without an earlier reservation.

        deadline: on the monotonic clock. queued_at: of the first round, for a later one, which
        precedes the client's other items. Raises NotReady.
        """
        with self._changed:
            if self._refusal is not None:
                raise NotReady(self._refusal)
            ticket.item, ticket.deadline = item, deadline
            ticket.queued_at = time.monotonic() if queued_at is None else queued_at
            self._add(ticket)
            self._waiting.add(ticket, continued=queued_at is not None)
            self._changed.notify()

    def release(self, ticket: Ticket) -> None:
        """Frees the ticket's rows; removes its item if it has not started."""
        with self._changed:
            self._remove(ticket)
            ticket.future.cancel()
            self._waiting.remove(ticket)

    def next_batch(self) -> Batch | None:
        """Waits for and starts a batch of items in fair order.

        Returns None once the queue is closed and empty.
        """
        with self._changed:
            while True:
                self._changed.wait_for(self._can_continue)
                if not self._waiting:
                    return None
                tickets = self._take_first()
                if tickets:
                    batch = Batch(tickets, self._leaves_cores(tickets))
                    self._running.add(batch)
                    self._throughput.start(batch)
                    return batch

    def finish(self, batch: Batch) -> None:
        """Records that a batch has run."""
        with self._changed:
            self._running.remove(batch)
            self._throughput.finish(batch)
            self._changed.notify_all()

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
            self._capacity.add(ticket.flow, ticket.rows)

    def _remove(self, ticket: Ticket) -> None:
        if ticket in self._tickets:
            self._tickets.remove(ticket)
            self._capacity.add(ticket.flow, -ticket.rows)
            self._rows[ticket.engine] -= ticket.rows
            if not self._rows[ticket.engine]:
                del self._rows[ticket.engine]  # do not keep a replaced engine in memory

    def _can_continue(self) -> bool:
        """Returns whether a worker has something to run, or nothing any more."""
        if self._refusal is not None and not self._waiting:
            return True
        return self._waiting.first(self._is_allowed) is not None

    def _is_allowed(self, ticket: Ticket) -> bool:
        running = [batch.clients for batch in self._running]
        return self._recent.may_start(ticket.flow.client, self._workers, running)

    def _leaves_cores(self, tickets: list[Ticket]) -> bool:
        """Returns whether a pass belongs to clients with more work, while others are active.

        More threads than cores slow all passes down many times, so these passes do not take the
        cores that the next pass of another client needs.
        """
        busy = {ticket.flow.client for ticket in self._tickets}
        clients = {ticket.flow.client for ticket in tickets}
        return clients <= busy and any(map(self._recent.has_other, clients))

    def _take_first(self) -> list[Ticket]:
        """Removes and returns the tickets of the next batch; empty if all deadlines have passed.

        A batch takes at most one worker's part of the waiting rows that can share it, so that no
        worker is idle.
        """
        chosen = self._waiting.first(self._is_allowed)
        assert chosen is not None
        engine = chosen.engine
        sharing_rows = sum(
            ticket.rows for ticket in self._waiting if ticket.engine.pass_key == engine.pass_key
        )
        max_rows = min(math.ceil(sharing_rows / self._workers), self._batch_rows(engine))
        batch: list[Ticket] = []
        rows = 0
        while chosen is not None and (not batch or rows + chosen.rows <= max_rows):
            self._waiting.take(chosen)
            self._remove(chosen)
            if chosen.deadline <= time.monotonic():
                chosen.resolve(DeadlinePassed("the deadline passed while the request was queued"))
            elif chosen.future.set_running_or_notify_cancel():
                batch.append(chosen)
                rows += chosen.rows
            chosen = self._waiting.first(
                lambda ticket: (
                    ticket.engine.pass_key == engine.pass_key and self._is_allowed(ticket)
                )
            )
        return batch

    def _estimate_s(self, engine: Engine, rows: int) -> float:
        batches = math.ceil(rows / self._batch_rows(engine))
        return self._throughput.seconds(engine, rows, batches)

    def _batch_rows(self, engine: Engine) -> int:
        """Returns the maximum rows of a batch; a larger item runs alone.

        The engine's limit is for the whole device, whose caches the workers share.
        """
        limits = self._settings.max_batch_rows, engine.max_rows_per_pass // self._workers
        in_time = self._throughput.rows_within(engine, self._settings.max_pass_ms / 1000)
        return max(1, int(min(*limits, in_time)))

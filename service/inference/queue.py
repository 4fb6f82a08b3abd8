"""The request queue: reserved rows, waiting items, and batches of them in fair order."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from eulerlora.answer import Predictions
from eulerlora.scores.trajectories import Trajectories
from eulerlora_contract.problems import DeadlinePassed, NotReady, Overloaded, Problem
from service.fair_sharing import (
    INTERNAL,
    FairQueue,
    RecentClients,
    SharedCapacity,
    ShareExceeded,
)
from service.inference.engine import InferenceItem, ServedModel
from service.inference.queue_cost import ThroughputEstimate
from service.settings import ServiceSettings

_ADMITTED_SHARE = 0.8  # of the deadline; the rest is for pauses and errors of the estimate
_SMALLEST_ROWS = 2  # of a request whose rows are not known yet
_ALONE_FACTOR = 8  # multiplies max_pass_ms while one client is active alone


@dataclass(frozen=True)
class InferenceResult:
    """The trajectories of one item, and its times in seconds.

    Attributes:
        ran_s: Of its batch.
        summary: Of the trajectories, if it is known.
    """

    trajectories: Trajectories
    queued_s: float
    ran_s: float
    summary: Predictions | None = None


@dataclass(eq=False, repr=False)  # a generated repr would print the item's tensor, which is slow
class Ticket:
    """A reservation of rows for one item, which is set once its image is decoded.

    Attributes:
        item: Set when the ticket enters the queue, as are the next two.
        deadline: On the monotonic clock; the item does not start after it.
        queued_at: The time when the item entered the queue; of a later round of an image, the time
            when the first round did.
    """

    served: ServedModel
    rows: int
    client: str = INTERNAL
    future: "Future[InferenceResult]" = field(default_factory=Future)
    item: InferenceItem = field(init=False)
    deadline: float = field(init=False)
    queued_at: float = field(init=False)

    @property
    def cost(self) -> float:
        """The rows, which the fair queue charges to the client."""
        return self.rows

    def resolve(self, result: InferenceResult | Problem) -> None:
        """Sets the future's result or exception, unless it is already done or cancelled."""
        with suppress(InvalidStateError):
            if isinstance(result, Problem):
                self.future.set_exception(result)
            else:
                self.future.set_result(result)


@dataclass(eq=False, repr=False)
class Batch:
    """Tickets of one model that run together.

    Attributes:
        leaves_cores: True if cores must stay free for the passes of other clients.
    """

    tickets: list[Ticket]
    leaves_cores: bool = False

    @property
    def served(self) -> ServedModel:
        return self.tickets[0].served

    @property
    def rows(self) -> int:
        return sum(ticket.rows for ticket in self.tickets)

    @property
    def clients(self) -> set[str]:
        return {ticket.client for ticket in self.tickets}


class RequestQueue:
    """Tickets in fair order; owns the capacity of the service.

    Thread-safe.

    Args:
        settings: max_waiting_rows limits the rows of all tickets, `_ADMITTED_SHARE` of deadline_s
            the estimated time until those of a request have run, max_batch_rows and max_pass_ms a
            batch. An empty queue admits an item of any size.
        workers: The number of batches that may run at the same time.
        now: A clock in seconds, for the time that batches take.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        workers: int = 1,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._workers = workers
        self._throughput = ThroughputEstimate(now)
        self._tickets: set[Ticket] = set()
        self._rows: Counter[ServedModel] = Counter()  # of `_tickets`
        self._counts: Counter[ServedModel] = Counter()  # of those of `_tickets` that have rows
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
        with self._changed:
            return len(self._tickets)

    @property
    def is_idle(self) -> bool:
        """True if nothing is reserved, waiting or running."""
        with self._changed:
            return not self._tickets and not self._running

    def wait_s(
        self, client: str, rows: int = 0, served: ServedModel | None = None, count: int = 1
    ) -> float:
        """The estimated seconds until the rows of a client have run, and `rows` more.

        Rows of other clients count only as far as fair sharing lets them run before.

        Args:
            client: Whose rows already wait.
            rows: Additional ones.
            served: The model of these additional rows; None stands for those of a small request.
            count: The number of items that the additional rows belong to.
        """
        with self._changed:
            rows_by_model, counts = self._rows.copy(), self._counts.copy()
            if served is None:
                rows = _SMALLEST_ROWS
            else:
                rows_by_model[served] += rows
                counts[served] += count
            total = rows_by_model.total()
            before = min(total, self._capacity.finish_work(client, rows))
            return self._throughput.remaining_s() + sum(
                self._estimate_s(
                    queued, math.ceil(waiting * before / total), waiting / counts[queued]
                )
                for queued, waiting in rows_by_model.items()
            )

    def check_capacity(
        self, client: str, rows: int = 1, served: ServedModel | None = None, count: int = 1
    ) -> None:
        """Refuses rows that the queue has no capacity for.

        Args:
            client: Whose share of the capacity counts.
            rows: Additional ones.
            served: The model of the rows, to include their run time.
            count: As in `wait_s`.

        Raises:
            Overloaded: The rows exceed the capacity; ShareExceeded if the client has more than an
                equal share of the rows, and other clients are active.
            NotReady: The queue is closed.
        """
        with self._changed:
            if self._refusal is not None:
                raise NotReady(self._refusal)
            limit_s = _ADMITTED_SHARE * self._settings.deadline_s
            if self._tickets and (
                self._capacity.utilization(client, rows) > 1
                or self.wait_s(client, rows, served, count) > limit_s
            ):
                above = self._capacity.exceeds_share(client, len(self._recent))
                kind = ShareExceeded if above else Overloaded
                detail = "the accepted requests leave too little capacity"
                raise kind(detail, self.wait_s(client))

    @contextmanager
    def reserve(
        self, client: str, served: ServedModel, rows: Sequence[int]
    ) -> Iterator[list[Ticket]]:
        """Yields a ticket for each number of rows, and releases them on exit.

        Raises:
            Overloaded: If there is no capacity for all of them.
            NotReady: The queue is closed.
        """
        with self._changed:
            self.check_capacity(client, sum(rows), served, len(rows))
            self._recent.note(client)
            tickets = [Ticket(served, of_item, client) for of_item in rows]
            for ticket in tickets:
                self._add(ticket)
        try:
            yield tickets
        finally:
            for ticket in tickets:
                self.release(ticket)

    def enqueue(
        self, ticket: Ticket, item: InferenceItem, deadline: float, queued_at: float | None = None
    ) -> None:
        """Adds an item to the queue, with or without an earlier reservation.

        Args:
            ticket: Of the item's rows.
            item: The image and its draw.
            deadline: On the monotonic clock.
            queued_at: Of the first round, for a later one, which precedes the client's other items.

        Raises:
            NotReady: The queue is closed.
        """
        with self._changed:
            if self._refusal is not None:
                raise NotReady(self._refusal)
            ticket.item, ticket.deadline = item, deadline
            ticket.queued_at = time.monotonic() if queued_at is None else queued_at
            self._add(ticket)
            self._waiting.add(ticket)
            self._changed.notify()

    def release(self, ticket: Ticket) -> None:
        """Frees the ticket's rows; removes its item if it has not started."""
        with self._changed:
            self._remove(ticket)
            ticket.future.cancel()
            self._waiting.remove(ticket)

    def next_batch(self) -> Batch | None:
        """Waits for and starts a batch of items in fair order; None once closed and empty."""
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
            self._rows[ticket.served] += ticket.rows
            self._counts[ticket.served] += ticket.rows > 0
            self._capacity.add(ticket.client, ticket.rows)

    def _remove(self, ticket: Ticket) -> None:
        if ticket in self._tickets:
            self._tickets.remove(ticket)
            self._capacity.add(ticket.client, -ticket.rows)
            self._rows[ticket.served] -= ticket.rows
            self._counts[ticket.served] -= ticket.rows > 0
            if not self._rows[ticket.served]:  # keeps no replaced model in memory
                del self._rows[ticket.served], self._counts[ticket.served]

    def _can_continue(self) -> bool:
        if self._refusal is not None and not self._waiting:
            return True
        return self._waiting.first(self._may_start()) is not None

    def _may_start(self) -> Callable[[str], bool]:
        running = [batch.clients for batch in self._running]
        return lambda client: self._recent.may_start(client, self._workers, running)

    def _leaves_cores(self, tickets: list[Ticket]) -> bool:
        """True for a pass of clients with more work, while others are active.

        More threads than cores slow all passes down many times, so these passes do not take the
        cores that the next pass of another client needs.
        """
        busy = {ticket.client for ticket in self._tickets}
        clients = {ticket.client for ticket in tickets}
        return clients <= busy and any(map(self._recent.has_other, clients))

    def _take_first(self) -> list[Ticket]:
        """Takes the tickets of the next batch; empty if all deadlines have passed.

        A batch takes at most one worker's part of the waiting rows that can share it, so that no
        worker is idle.
        """
        may_start = self._may_start()
        chosen = self._waiting.first(may_start)
        assert chosen is not None
        served = chosen.served
        sharing_rows = sum(ticket.rows for ticket in self._waiting if ticket.served is served)
        alone = not self._recent.has_other(chosen.client)
        max_rows = min(math.ceil(sharing_rows / self._workers), self._batch_rows(served, alone))
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
            chosen = self._waiting.first(may_start, lambda ticket: ticket.served is served)
        return batch

    def _estimate_s(self, served: ServedModel, rows: int, mean_rows: float) -> float:
        # an item is never divided, so that a batch holds at least the rows of one
        batches = math.ceil(rows / max(self._batch_rows(served), mean_rows))
        return self._throughput.seconds(served, rows, batches)

    def _batch_rows(self, served: ServedModel, alone: bool = False) -> int:
        """The maximum rows of a batch; a larger item runs alone.

        `alone` is True if no other client is active, so that nobody waits for a longer pass.
        """
        seconds = self._settings.max_pass_ms / 1000 * (_ALONE_FACTOR if alone else 1)
        in_time = self._throughput.rows_within(served, seconds)
        return max(1, int(min(self._settings.max_batch_rows, served.max_rows_per_pass, in_time)))

"""Tickets: reserved rows of the request queue, and the batches that tickets run in."""

from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

from eulerlora.nn.runtime import ImageOutput
from eulerlora_client.contract.problems import Problem
from service.inference.engine import Engine, InferenceItem, infer_together
from service.scheduling.clients import Flow


@dataclass(frozen=True)
class InferenceResult:
    """The engine's output for one item and its times in seconds.

    queued_s: in the queue. ran_s: of its batch.
    """

    output: ImageOutput
    queued_s: float
    ran_s: float


@dataclass(eq=False, repr=False)  # a generated repr would print the item's tensor, which is slow
class Ticket:
    """A reservation of rows for one item, which is set once its image is decoded.

    flow: the request that it belongs to. deadline: on the monotonic clock; the item does not start
    after it. queued_at: the time when the item entered the queue; of a later round, the time when
    the first round did. parent: the ticket of all rounds that this ticket of one round was split
    from, or None.
    """

    engine: Engine
    rows: int
    flow: Flow = field(default_factory=Flow)
    future: "Future[InferenceResult]" = field(default_factory=Future)
    item: InferenceItem | None = None
    deadline: float = 0.0
    queued_at: float = 0.0
    parent: "Ticket | None" = None

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
    """Tickets that run together; their engines have equal `pass_key`s.

    leaves_cores: True if cores must stay free for the passes of other clients.
    """

    tickets: list[Ticket]
    leaves_cores: bool = False

    @property
    def engine(self) -> Engine:
        """The engine of the first ticket, by which the run time of the batch is estimated."""
        return self.tickets[0].engine

    @property
    def rows(self) -> int:
        """The total number of rows."""
        return sum(ticket.rows for ticket in self.tickets)

    @property
    def clients(self) -> set[str]:
        """The clients that the tickets belong to."""
        return {ticket.flow.client for ticket in self.tickets}

    @property
    def by_engine(self) -> dict[Engine, list[Ticket]]:
        """The tickets of each engine."""
        return tickets_by_engine(self.tickets)


def tickets_by_engine(tickets: Sequence[Ticket]) -> dict[Engine, list[Ticket]]:
    """Returns the tickets of each engine, in order."""
    groups: dict[Engine, list[Ticket]] = {}
    for ticket in tickets:
        groups.setdefault(ticket.engine, []).append(ticket)
    return groups


def infer_tickets(tickets: Sequence[Ticket]) -> list[ImageOutput]:
    """Returns the output for the item of each ticket, in order, from one batch.

    The engines have equal `pass_key`s. Raises as `Engine.infer`.
    """
    groups = tickets_by_engine(tickets)
    batch = [(engine, [_item(ticket) for ticket in group]) for engine, group in groups.items()]
    if len(batch) == 1:
        ((engine, items),) = batch
        return engine.infer(items)
    outputs = {
        id(ticket): output
        for group, results in zip(groups.values(), infer_together(batch), strict=True)
        for ticket, output in zip(group, results, strict=True)
    }
    return [outputs[id(ticket)] for ticket in tickets]


def _item(ticket: Ticket) -> InferenceItem:
    assert ticket.item is not None
    return ticket.item

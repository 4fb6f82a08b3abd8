"""Tickets: reserved rows of the request queue, and the batches that tickets run in."""

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

from eulerlora.inference import ImageOutput
from eulerlora_client.contract.problems import Problem
from service.inference.engine import Engine, InferenceItem
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
    """Tickets of one engine that run in one forward pass.

    leaves_cores: True if cores must stay free for the passes of other clients.
    """

    tickets: list[Ticket]
    leaves_cores: bool = False

    @property
    def engine(self) -> Engine:
        """The engine of all tickets."""
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
    def items(self) -> list[InferenceItem]:
        """The items of the tickets, in order."""
        return [ticket.item for ticket in self.tickets if ticket.item is not None]

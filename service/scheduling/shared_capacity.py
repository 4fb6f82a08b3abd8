"""Admission to a capacity that clients and their requests share: its size and its time."""

from collections import Counter
from collections.abc import Iterable

from service.scheduling.clients import Flow

NEGLIGIBLE = 1e-9  # a rounding error of released fractions


class SharedCapacity:
    """Amounts that flows hold of a limited capacity, for example rows or bytes.

    Dynamic thresholds (A. K. Choudhury, E. L. Hahne, "Dynamic Queue Length Thresholds for
    Shared-Memory Packet Switches", 1998) in two levels: a client may hold as much as remains free
    after it, and a request as much as remains for its client. A client below an equal share is
    admitted even if others, which came before it, have left too little: the total may then exceed
    the limit until they release what they hold beyond their share. Not thread-safe.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._held: dict[str, Counter[Flow]] = {}

    @property
    def total(self) -> float:
        """The amount that all flows hold."""
        return sum(sum(flows.values()) for flows in self._held.values())

    def add(self, flow: Flow, amount: float) -> None:
        """Adds an amount that the flow holds; negative to release it."""
        flows = self._held.setdefault(flow.client, Counter())
        flows[flow] += amount  # type: ignore[assignment]  # amounts may be fractions
        if flows[flow] <= NEGLIGIBLE:
            del flows[flow]
        if not flows:
            del self._held[flow.client]

    def admits(self, flow: Flow, amount: float) -> bool:
        """Returns whether the flow may hold `amount` more; if no other holds any, it may."""
        return self.utilization(flow, amount) <= 1 or not any(
            other != flow for flows in self._held.values() for other in flows
        )

    def utilization(self, flow: Flow, amount: float) -> float:
        """Returns the used fraction of what the flow may hold, with `amount` more.

        A request that was admitted alone and exceeds its part counts as one that just fits, so
        that others are admitted as usual.
        """
        clients = {name: self._capped(flows.values()) for name, flows in self._held.items()}
        client = clients.get(flow.client, 0.0)
        total = sum(min(held, self._limit / 2) for held in clients.values())
        request = self._held.get(flow.client, Counter())[flow]
        needed = request + client + 2 * amount
        equal_share = self._limit / (len(clients.keys() | {flow.client}) + 1)
        return min(needed / equal_share, (needed + total + amount) / self._limit)

    def finish_work(self, flow: Flow, amount: float) -> float:
        """Returns the work that all flows get until the flow has got `amount` more than it holds.

        Under fair sharing without arrivals: until then every other request of the client has got
        the same or is done, and so has every other client.
        """
        own_flows = self._held.get(flow.client, Counter())
        needed = own_flows[flow] + amount
        own = needed + sum(min(held, needed) for other, held in own_flows.items() if other != flow)
        return own + sum(
            min(sum(flows.values()), own)
            for name, flows in self._held.items()
            if name != flow.client
        )

    def _capped(self, requests: Iterable[float]) -> float:
        return sum(min(held, self._limit / 3) for held in requests)

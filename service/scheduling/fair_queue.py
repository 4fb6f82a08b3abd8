"""A queue that shares its service fairly between clients, and between the flows of a client."""

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from service.scheduling.clients import Flow
from service.scheduling.finish_tags import FinishTags


class Queued(Protocol):
    """An item of a fair queue.

    cost: in the unit of the shared service, for example rows. queued_at: orders the items of jobs
    that have started.
    """

    @property
    def flow(self) -> Flow: ...

    @property
    def cost(self) -> float: ...

    @property
    def queued_at(self) -> float: ...


Item = TypeVar("Item", bound=Queued)
Allowed = Callable[[Item], bool]


@dataclass
class _Client(Generic[Item]):
    """The items of a client. continued: of jobs that have started, oldest first."""

    tags: FinishTags[Flow] = field(default_factory=FinishTags)
    flows: dict[Flow, deque[Item]] = field(default_factory=dict)
    continued: list[Item] = field(default_factory=list)

    def first(self, allowed: Allowed[Item]) -> Item | None:
        """Returns the next item that is allowed, or None."""
        for item in self.continued:
            if allowed(item):
                return item
        flow = self.tags.first(lambda flow: allowed(self.flows[flow][0]))
        return None if flow is None else self.flows[flow][0]

    def remove(self, item: Item) -> None:
        """Removes an item; charges nothing."""
        if item in self.continued:
            self.continued.remove(item)
            return
        items = self.flows[item.flow]
        items.remove(item)
        if items:
            self.tags.activate(item.flow, items[0].cost)
        else:
            del self.flows[item.flow]
            self.tags.deactivate(item.flow)

    def take(self, item: Item) -> None:
        """Removes an item that is first in its flow, and charges its cost to the flow."""
        if item in self.continued:
            self.continued.remove(item)
            self.tags.charge(item.flow, item.cost)
            return
        items = self.flows[item.flow]
        items.popleft()
        self.tags.serve(item.flow, items[0].cost if items else None)
        if not items:
            del self.flows[item.flow]


class FairQueue(Generic[Item]):
    """Self-clocked fair queueing in two levels: clients, and the flows (requests) of each client.

    Items of one flow are first in, first out. Not thread-safe.
    """

    def __init__(self) -> None:
        self._tags: FinishTags[str] = FinishTags()
        self._clients: dict[str, _Client[Item]] = {}
        self._items: set[Item] = set()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        """Yields all items in no particular order."""
        return iter(self._items)

    def add(self, item: Item, continued: bool = False) -> None:
        """Adds an item.

        continued: the item belongs to a job that has started; it precedes the other items of its
        client, but not those of other clients.
        """
        self._items.add(item)
        client = self._clients.setdefault(item.flow.client, _Client())
        if continued:
            insort(client.continued, item, key=lambda other: other.queued_at)
        else:
            items = client.flows.setdefault(item.flow, deque())
            items.append(item)
            client.tags.activate(item.flow, items[0].cost)
        self._set_next_cost(item.flow.client)

    def first(self, allowed: Allowed[Item] = lambda _: True) -> Item | None:
        """Returns the next item in fair order, or None; skips items that are not allowed."""
        chosen: Item | None = None

        def has_item(client: str) -> bool:
            nonlocal chosen
            chosen = self._clients[client].first(allowed)
            return chosen is not None

        self._tags.first(has_item)
        return chosen

    def take(self, item: Item) -> None:
        """Removes an item that `first` returned, and charges its cost to its flow and client."""
        name = item.flow.client
        client = self._clients[name]
        self._items.remove(item)
        client.take(item)
        self._tags.activate(name, item.cost)
        following = client.first(lambda _: True)
        self._tags.serve(name, None if following is None else following.cost)
        if following is None:
            del self._clients[name]

    def remove(self, item: Item) -> None:
        """Removes an item without a charge, if it is in the queue."""
        if item not in self._items:
            return
        self._items.remove(item)
        self._clients[item.flow.client].remove(item)
        self._set_next_cost(item.flow.client)

    def charge(self, flow: Flow, cost: float) -> None:
        """Adds a cost to a flow and its client, negative for a refund."""
        self._tags.charge(flow.client, cost)
        if flow.client in self._clients:
            self._clients[flow.client].tags.charge(flow, cost)

    def clear(self) -> None:
        """Removes all items."""
        for item in tuple(self._items):
            self.remove(item)

    def _set_next_cost(self, name: str) -> None:
        following = self._clients[name].first(lambda _: True)
        if following is None:
            del self._clients[name]
            self._tags.deactivate(name)
        else:
            self._tags.activate(name, following.cost)

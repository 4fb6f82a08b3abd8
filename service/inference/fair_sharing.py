"""The clients that share the service, and their requests.

Clients that were active recently, for whom a worker is kept free.

Admission to a capacity that clients and their requests share: its size and its time.

Self-clocked fair queueing: the order in which flows are served.

S. J. Golestani, "A Self-Clocked Fair Queueing Scheme for Broadband Applications" (INFOCOM 1994),
with equal weights.

A queue that shares its service fairly between clients, and between the flows of a client.
"""

import heapq
import ipaddress
import itertools
import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

INTERNAL = "internal"  # health checks and warm-up
IPV6_PREFIX = 64  # a site gets at least this prefix (RFC 6177), and can use all of its addresses


@dataclass(frozen=True, eq=False)
class Flow:
    """The work of one request. Clients have equal shares, and so have the flows of a client."""

    client: str = INTERNAL


def client_of(scope: Mapping[str, Any]) -> str:
    """Returns who sent a request: the name of its API key, otherwise the address of its peer.

    Behind a trusted proxy, the server replaces the peer by the forwarded address.
    """
    name = scope.get("state", {}).get("client")
    if name is not None:
        return f"key:{name}"
    peer = scope.get("client")
    return "address:" if peer is None else f"address:{network_of(peer[0])}"


def network_of(address: str) -> str:
    """Returns an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address  # the host name of a test client, or the path of a Unix socket
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), IPV6_PREFIX), strict=False))


WINDOW_S = 10.0


class RecentClients:
    """Remembers the last activity of every client.

    Work in a worker cannot be interrupted. If one client occupied all workers, every other client
    would first wait for one of them. So while several clients are active, the last free worker
    takes no work of a client that has work in all others. now: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last_s: dict[str, float] = {}  # least recent first

    def note(self, client: str) -> None:
        """Records that a client is active now."""
        self._last_s.pop(client, None)
        self._last_s[client] = self._now()

    def may_start(self, client: str, workers: int, running: Sequence[Collection[str]]) -> bool:
        """Returns whether a free worker may take work of a client.

        running: the clients with work in each of the busy workers.
        """
        if workers == 1 or len(running) < workers - 1 or not self.has_other(client):
            return True
        return not all(client in clients for clients in running)

    def has_other(self, client: str) -> bool:
        """Returns whether another client was active in the last ten seconds."""
        oldest_s = self._now() - WINDOW_S
        while self._last_s and self._last_s[first := next(iter(self._last_s))] < oldest_s:
            del self._last_s[first]
        return len(self._last_s) > (client in self._last_s)


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


Key = TypeVar("Key")

SPARE_TAGS = 64  # tags of flows without items that are kept before they are checked


@dataclass(frozen=True)
class _Active:
    """A flow with items. number: of its valid entry in the heap."""

    start: float
    cost: float
    number: int

    @property
    def tag(self) -> float:
        return self.start + self.cost


class FinishTags(Generic[Key]):
    """The finish tags of the flows at one server; the flow with the lowest is served next.

    The tag of a flow's next item is its previous tag, or virtual time if that is later when the
    flow becomes active, plus the cost of the item. Virtual time is the tag of the item in service.
    So a flow earns no credit while it is idle, and it waits for about one item of every other flow.
    """

    def __init__(self) -> None:
        self._virtual_time = 0.0
        self._last: dict[Key, float] = {}  # tags of served items
        self._active: dict[Key, _Active] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._numbers = itertools.count()

    def activate(self, key: Key, cost: float) -> None:
        """Makes a flow active, or changes the cost of its next item."""
        active = self._active.get(key)
        if active is None:
            self._push(key, max(self._virtual_time, self._last.get(key, 0.0)), cost)
        elif active.cost != cost:
            self._push(key, active.start, cost)

    def deactivate(self, key: Key) -> None:
        """Removes a flow that has no items; a tag ahead of virtual time is kept."""
        self._active.pop(key, None)
        if not self._active:
            self._heap.clear()
        if len(self._last) > 2 * len(self._active) + SPARE_TAGS:
            self._last = {key: tag for key, tag in self._last.items() if tag > self._virtual_time}

    def first(self, allowed: Callable[[Key], bool]) -> Key | None:
        """Returns the active flow with the lowest tag among those allowed, or None.

        Of equal tags, the flow that got its tag first.
        """
        skipped = []
        chosen = None
        while self._heap and chosen is None:
            _, number, key = self._heap[0]
            active = self._active.get(key)
            if active is None or active.number != number:
                heapq.heappop(self._heap)  # outdated
            elif allowed(key):
                chosen = key
            else:
                skipped.append(heapq.heappop(self._heap))
        for entry in skipped:
            heapq.heappush(self._heap, entry)
        return chosen

    def serve(self, key: Key, next_cost: float | None) -> None:
        """Starts the next item of an active flow. next_cost: of the item after it, if any."""
        tag = self._active.pop(key).tag
        self._last[key] = tag
        self._virtual_time = max(self._virtual_time, tag)
        if next_cost is None:
            self.deactivate(key)
        else:
            self._push(key, tag, next_cost)

    def charge(self, key: Key, cost: float) -> None:
        """Adds a cost that a flow has not paid, negative for a refund.

        A refund reduces the tag of an idle flow at most to virtual time.
        """
        active = self._active.get(key)
        if active is not None:
            self._push(key, active.start + cost, active.cost)
        else:
            self._last[key] = max(self._virtual_time, self._last.get(key, 0.0)) + cost

    def _push(self, key: Key, start: float, cost: float) -> None:
        self._active[key] = active = _Active(start, cost, next(self._numbers))
        heapq.heappush(self._heap, (active.tag, active.number, key))


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

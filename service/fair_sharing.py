"""Fair shares of decoders, inference, queue capacity and upload memory, and quotas of clients.

Nothing here knows what is shared. A `FairQueue` gives every client an equal part of a service,
whatever it sends. A `SharedCapacity` says how much of a limit a client may still use.
`RecentClients` keeps a worker free for others. A `ClientQuota` is a rate for each client.
"""

import asyncio
import ipaddress
import time
from bisect import insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from eulerlora_contract.problems import Overloaded, QuotaExceeded

__all__ = [
    "INTERNAL",
    "ClientQuota",
    "ClientTurns",
    "FairQueue",
    "RecentClients",
    "ShareExceeded",
    "SharedCapacity",
    "address_network",
    "client_of",
]

INTERNAL = "internal"  # the client of health checks and warm-up
_IPV6_PREFIX = 64  # a site gets at least this prefix (RFC 6177), and can use all of its addresses
_ACTIVE_S = 10.0
_MINUTE_S = 60.0
_MAX_BALANCES = 10_000
"""Clients that a quota remembers; of more, those charged least recently start with a full one."""

_NEGLIGIBLE = 1e-9  # a rounding error of released fractions


class ShareExceeded(Overloaded):
    """Refuses a client that holds more than its share; its response is delayed."""


def client_of(scope: Mapping[str, Any]) -> str:
    """Who sent a request: the name of its API key, otherwise the address of its peer.

    Behind a trusted proxy, the server replaces the peer by the forwarded address.
    """
    name = scope.get("state", {}).get("key_name")
    if name is not None:
        return f"key:{name}"
    peer = scope.get("client")
    return "address:" if peer is None else f"address:{address_network(peer[0])}"


class ClientTurns:
    """A lock for each client, whose requests then wait for one another and not for those of others.

    A lock exists while somebody has or awaits it.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, scope: Mapping[str, Any]) -> asyncio.Lock:
        """The lock of a request's client (`client_of`)."""
        return self._locks.setdefault(client_of(scope), asyncio.Lock())


@lru_cache(maxsize=1024)
def address_network(address: str) -> str:
    """An IPv4 address, or the /64 network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address  # the host name of a test client, or the path of a Unix socket
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), _IPV6_PREFIX), strict=False))


class _Queued(Protocol):
    """An item of a fair queue.

    Attributes:
        cost: In the unit of the shared service, for example rows.
    """

    @property
    def client(self) -> str: ...

    @property
    def cost(self) -> float: ...

    @property
    def queued_at(self) -> float: ...


_Item = TypeVar("_Item", bound=_Queued)


class FairQueue(Generic[_Item]):
    """Self-clocked fair queueing of clients; the items of a client are ordered by `queued_at`.

    The client with the lowest finish tag is served next: its previous tag, or virtual time if that
    was later when the client got an item, plus the cost of its next item. Virtual time is the tag
    of the item in service. So a client earns no credit while it is idle, and waits for about one
    item of every other client. S. J. Golestani, "A Self-Clocked Fair Queueing Scheme for Broadband
    Applications" (INFOCOM 1994), with equal weights. Not thread-safe.
    """

    def __init__(self) -> None:
        self._virtual_time = 0.0
        self._starts: dict[str, float] = {}  # of the next item: the last finish tag of every client
        self._waiting: dict[str, list[_Item]] = {}  # by client, oldest first

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[_Item]:
        """Yields all items in no particular order."""
        for items in self._waiting.values():
            yield from items

    def add(self, item: _Item) -> None:
        items = self._waiting.get(item.client)
        if items is None:
            self._starts[item.client] = self._start_of(item.client)
            items = self._waiting[item.client] = []
        insort(items, item, key=lambda other: other.queued_at)

    def first(
        self,
        may_start: Callable[[str], bool] = lambda _: True,
        is_allowed: Callable[[_Item], bool] = lambda _: True,
    ) -> _Item | None:
        """The next item in fair order, or None.

        Args:
            may_start: Of a client; others are skipped and keep their turn.
            is_allowed: Of an item; others are skipped and keep their turn.
        """
        candidates = (
            next(filter(is_allowed, items), None)
            for client, items in self._waiting.items()
            if may_start(client)
        )
        return min(filter(None, candidates), key=self._tag_of, default=None)

    def take(self, item: _Item) -> None:
        """Removes an item that `first` returned, and charges its cost to its client."""
        tag = self._tag_of(item)
        self._virtual_time = max(self._virtual_time, tag)
        self._starts[item.client] = tag
        self.remove(item)

    def remove(self, item: _Item) -> None:
        """Removes an item without a charge, if it is in the queue."""
        items = self._waiting.get(item.client, [])
        if item not in items:
            return
        items.remove(item)
        if not items:
            del self._waiting[item.client]
            self._forget_idle()

    def charge(self, client: str, cost: float) -> None:
        """Adds a cost to a client; a negative one is a refund."""
        self._starts[client] = self._start_of(client) + cost

    def clear(self) -> None:
        """Removes all items."""
        self._waiting.clear()
        self._forget_idle()

    def _tag_of(self, item: _Item) -> float:
        return self._starts[item.client] + item.cost

    def _start_of(self, client: str) -> float:
        start = self._starts.get(client, 0.0)
        return start if client in self._waiting else max(self._virtual_time, start)

    def _forget_idle(self) -> None:
        """Removes the tags of idle clients that virtual time has reached."""
        if len(self._starts) > 2 * len(self._waiting) + 64:
            self._starts = {
                client: start
                for client, start in self._starts.items()
                if client in self._waiting or start > self._virtual_time
            }


class SharedCapacity:
    """Amounts that clients hold of a limited capacity, for example rows or bytes.

    Dynamic thresholds (A. K. Choudhury, E. L. Hahne, "Dynamic Queue Length Thresholds for
    Shared-Memory Packet Switches", 1998): a client may hold as much as remains free after it. A
    client below an equal share is admitted even if others, which came before it, have left too
    little: the total may then exceed the limit until they release what they hold beyond their
    share. Not thread-safe.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._held: dict[str, float] = {}

    @property
    def total(self) -> float:
        """The amount that all clients hold."""
        return sum(self._held.values())

    def add(self, client: str, amount: float) -> None:
        """Adds an amount that the client holds; negative to release it."""
        self._held[client] = self._held.get(client, 0.0) + amount
        if self._held[client] <= _NEGLIGIBLE:
            del self._held[client]

    def utilization(self, client: str, amount: float) -> float:
        """The used fraction of what the client may hold, with `amount` more.

        A client that was admitted alone and exceeds its part counts as one that just fits, so that
        others are admitted as usual.
        """
        held = {name: min(amount, self._limit / 2) for name, amount in self._held.items()}
        mine = held.get(client, 0.0)
        equal_share = self._limit / (len(held.keys() | {client}) + 1)
        return min(
            (mine + amount) / equal_share,
            # At 1, the client holds as much as is free: mine + amount = limit - total - amount.
            (mine + sum(held.values()) + 2 * amount) / self._limit,
        )

    def exceeds_share(self, client: str, clients: int) -> bool:
        """True if a client holds more than an equal part of what `clients` hold together."""
        return self._held.get(client, 0.0) * clients > self.total

    def finish_work(self, client: str, amount: float) -> float:
        """The work that all clients get until the client has got `amount` more.

        Under fair sharing without arrivals: until then every other client has got the same or is
        done.
        """
        needed = self._held.get(client, 0.0) + amount
        return needed + sum(
            min(held, needed) for other, held in self._held.items() if other != client
        )


class RecentClients:
    """Clients that were active in the last ten seconds, for whom a worker is kept free.

    Work in a worker cannot be interrupted. If one client occupied all workers, every other client
    would first wait for one of them. So while several clients are active, the last free worker
    takes no work of a client that has work in all others.

    Args:
        now: A clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last_s: dict[str, float] = {}  # least recent first

    def note(self, client: str) -> None:
        """Records that a client is active now."""
        self._last_s.pop(client, None)
        self._last_s[client] = self._now()
        self._forget_inactive()

    def may_start(self, client: str, workers: int, running: Sequence[Collection[str]]) -> bool:
        """True if a free worker may take work of a client.

        Args:
            client: Whose work is next.
            workers: Number of all workers, free and busy.
            running: The clients with work in each of the busy workers.
        """
        if workers == 1 or len(running) < workers - 1 or not self.has_other(client):
            return True
        return not all(client in clients for clients in running)

    def has_other(self, client: str) -> bool:
        """True if another client is active."""
        return len(self) > (client in self._last_s)

    def __len__(self) -> int:
        self._forget_inactive()
        return len(self._last_s)

    def _forget_inactive(self) -> None:
        oldest_s = self._now() - _ACTIVE_S
        while self._last_s and self._last_s[first := next(iter(self._last_s))] < oldest_s:
            del self._last_s[first]


@dataclass(frozen=True)
class _Balance:
    """What a client could use at a time; negative after an expensive use."""

    amount: float
    at_s: float


class ClientQuota:
    """A token bucket for every client, in memory of a bounded size.

    Args:
        per_minute: The size of the bucket, which refills in a minute. A use is charged when its
            amount is known; a client in debt waits until the debt is refilled.
        what: Is limited, for the message; with its unit.
        now: A clock in seconds that never goes back. For use in one event loop.
    """

    def __init__(
        self, per_minute: float, what: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._capacity = per_minute
        self._what = what
        self._now = now
        self._balances: dict[str, _Balance] = {}  # least recently charged first

    def check(self, client: str, amount: float = 0.0) -> None:
        """Checks that the client may use `amount` more.

        Raises:
            QuotaExceeded: If its quota is used up, or has less left.
        """
        left = self._left(client)
        if left <= 0 or left < amount:
            raise QuotaExceeded(
                f"at most {self._capacity:g} {self._what} a minute",
                retry_after_s=(amount - left) * _MINUTE_S / self._capacity,
            )

    def charge(self, client: str, amount: float) -> None:
        """Subtracts a use of a client."""
        balance = _Balance(self._left(client) - amount, self._now())
        self._balances.pop(client, None)
        self._balances[client] = balance
        while self._balances:
            oldest = next(iter(self._balances))
            if len(self._balances) <= _MAX_BALANCES and self._left(oldest) < self._capacity:
                return
            del self._balances[oldest]

    def _left(self, client: str) -> float:
        """What a client may use now."""
        balance = self._balances.get(client)
        if balance is None:
            return self._capacity
        refilled = (self._now() - balance.at_s) * self._capacity / _MINUTE_S
        return min(self._capacity, balance.amount + refilled)

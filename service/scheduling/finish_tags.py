"""Self-clocked fair queueing: the order in which flows are served.

S. J. Golestani, "A Self-Clocked Fair Queueing Scheme for Broadband Applications" (INFOCOM 1994),
with equal weights.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

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

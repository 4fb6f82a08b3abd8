"""The fair queue against plain round robin, shares of service, and first in, first out."""

import itertools
import random
from collections import Counter, deque
from dataclasses import dataclass

import pytest

from service.inference.fair_sharing import FairQueue, Flow


@dataclass(eq=False)
class Item:
    flow: Flow
    cost: float = 1.0
    queued_at: float = 0.0


def queue_of(*items: Item) -> FairQueue[Item]:
    queue: FairQueue[Item] = FairQueue()
    for item in items:
        queue.add(item)
    return queue


def take(queue: FairQueue[Item]) -> Item:
    item = queue.first()
    assert item is not None
    queue.take(item)
    return item


def drain(queue: FairQueue[Item]) -> list[Item]:
    return [take(queue) for _ in range(len(queue))]


def items_of(client: str, count: int, cost: float = 1.0) -> list[Item]:
    """Returns items of one request."""
    flow = Flow(client)
    return [Item(flow, cost) for _ in range(count)]


def test_one_flow_is_first_in_first_out() -> None:
    items = items_of("a", 20)
    assert drain(queue_of(*items)) == items


def test_requests_of_one_item_are_first_in_first_out() -> None:
    items = [Item(Flow("a")) for _ in range(20)]
    assert drain(queue_of(*items)) == items


def test_equal_items_of_clients_are_served_in_round_robin_order() -> None:
    counts = {"a": 7, "b": 2, "c": 4}
    queues = {name: deque(items_of(name, count)) for name, count in counts.items()}
    expected = []
    waiting = {name: deque(items) for name, items in queues.items()}
    while any(waiting.values()):
        expected += [items.popleft() for items in waiting.values() if items]
    assert drain(queue_of(*itertools.chain(*queues.values()))) == expected


def test_requests_of_a_client_are_served_in_round_robin_order() -> None:
    batch, other = items_of("a", 4), items_of("a", 2)
    expected = [batch[0], other[0], batch[1], other[1], batch[2], batch[3]]
    assert drain(queue_of(*batch, *other)) == expected


def test_many_requests_of_a_client_get_it_no_larger_share() -> None:
    many = [Item(Flow("many")) for _ in range(30)]
    one = items_of("one", 30)
    served = Counter(item.flow.client for item in drain(queue_of(*many, *one))[:20])
    assert served == {"many": 10, "one": 10}


@pytest.mark.parametrize("seed", range(5))
def test_clients_that_always_wait_get_equal_costs_up_to_one_item(seed: int) -> None:
    randomness = random.Random(seed)
    clients = ("a", "b", "c")
    queue = queue_of()
    served: Counter[str] = Counter()
    for name in clients:
        queue.add(Item(Flow(name), randomness.randint(1, 9)))
    for _ in range(500):
        item = take(queue)
        served[item.flow.client] += int(item.cost)
        queue.add(Item(Flow(item.flow.client), randomness.randint(1, 9)))
        assert max(served[name] for name in clients) - min(served[name] for name in clients) <= 18


def test_a_newcomer_waits_for_at_most_one_item_of_a_long_backlog() -> None:
    queue = queue_of(*items_of("batch", 100, cost=8))
    for _ in range(50):
        take(queue)
    newcomer = Item(Flow("single"), 2)
    queue.add(newcomer)
    assert newcomer in [take(queue), take(queue)]


def test_a_large_request_is_not_starved_by_a_stream_of_small_ones() -> None:
    batch = items_of("a", 5, cost=4)
    queue = queue_of(*batch, *[Item(Flow("a")) for _ in range(8)])
    served = []
    for _ in range(400):
        queue.add(Item(Flow("a")))
        served.append(take(queue))
    assert set(batch) <= set(served)


def test_idle_time_earns_no_credit() -> None:
    queue = queue_of(Item(Flow("early")), *items_of("busy", 50))
    for _ in range(40):
        take(queue)
    for item in items_of("early", 10):
        queue.add(item)
    served = Counter(take(queue).flow.client for _ in range(10))
    assert served["early"] <= 6


def test_a_charge_delays_a_client_and_a_refund_restores_it() -> None:
    queue = queue_of(*items_of("a", 20), *items_of("b", 20))
    queue.charge(Flow("a"), 5)
    assert [take(queue).flow.client for _ in range(5)] == ["b"] * 5
    queue.charge(Flow("b"), -5)
    assert Counter(take(queue).flow.client for _ in range(11))["b"] >= 8


def test_a_continued_job_precedes_its_own_client_only() -> None:
    batch, other = items_of("a", 3), items_of("b", 3)
    queue = queue_of(*batch, *other)
    first = take(queue)
    older = Item(first.flow, 1, queued_at=1.0)
    newer = Item(Flow("a"), 1, queued_at=2.0)
    queue.add(newer, continued=True)
    queue.add(older, continued=True)
    assert drain(queue) == [other[0], older, other[1], newer, other[2], batch[1], batch[2]]


def test_items_that_are_not_allowed_are_skipped_and_keep_their_turn() -> None:
    a, b = items_of("a", 2), items_of("b", 2)
    queue = queue_of(*a, *b)
    assert queue.first(lambda item: item.flow.client == "b") is b[0]
    assert queue.first(lambda _: False) is None
    assert drain(queue) == [a[0], b[0], a[1], b[1]]


def test_a_removed_item_is_not_served_and_costs_nothing() -> None:
    a, b = items_of("a", 3, cost=9), items_of("b", 3)
    queue = queue_of(*a, *b)
    for item in a[:2]:
        queue.remove(item)
        queue.remove(item)
    assert len(queue) == 4
    queue.clear()
    assert queue.first() is None


def test_ended_requests_and_clients_leave_no_state() -> None:
    queue = queue_of()
    for index in range(2000):
        queue.add(Item(Flow(f"client {index}")))
        queue.add(Item(Flow("proxy")))
        if index % 2:
            take(queue)
            take(queue)
            take(queue)
    while len(queue) > 1:
        take(queue)
    assert len(queue._tags._last) < 200
    assert sum(len(client.tags._last) for client in queue._clients.values()) < 200

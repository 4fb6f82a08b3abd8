"""Who counts as one client, the fair queue, shares of a capacity, and quotas."""

import itertools
import random
from collections import Counter, deque
from dataclasses import dataclass

import pytest

from service.fair_sharing import (
    ClientQuota,
    FairQueue,
    RecentClients,
    SharedCapacity,
    client_of,
)
from tests.problems import raises_problem
from tests.service.fake_engine import FakeClock


@dataclass(eq=False)
class Item:
    client: str
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
    return [Item(client, cost) for _ in range(count)]


def test_the_name_of_a_key_comes_before_the_address_and_never_equals_one() -> None:
    scope = {"client": ("10.0.0.1", 4), "state": {"key_name": "10.0.0.1"}}
    assert client_of(scope) == "key:10.0.0.1"
    assert client_of({**scope, "state": {}}) == "address:10.0.0.1"
    assert client_of({}) == "address:"


@pytest.mark.parametrize(
    ("address", "network"),
    [("192.0.2.7", "192.0.2.7"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
     ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"), ("::ffff:192.0.2.7", "192.0.2.7"),
     ("testclient", "testclient")],
)  # fmt: skip
def test_all_addresses_of_an_ipv6_site_are_one_client(address: str, network: str) -> None:
    assert client_of({"client": (address, 4)}) == f"address:{network}"


def test_items_of_a_client_are_served_in_the_order_of_their_time_in_the_queue() -> None:
    items = items_of("a", 20)
    queue = queue_of(*items)
    older = Item("a", queued_at=-1.0)  # a later round of an image that was queued before
    queue.add(older)
    assert drain(queue) == [older, *items]


def test_equal_items_of_clients_are_served_in_round_robin_order() -> None:
    counts = {"a": 7, "b": 2, "c": 4}
    queues = {name: deque(items_of(name, count)) for name, count in counts.items()}
    expected = []
    waiting = {name: deque(items) for name, items in queues.items()}
    while any(waiting.values()):
        expected += [items.popleft() for items in waiting.values() if items]
    assert drain(queue_of(*itertools.chain(*queues.values()))) == expected


@pytest.mark.parametrize("seed", range(5))
def test_clients_that_always_wait_get_equal_costs_up_to_one_item(seed: int) -> None:
    randomness = random.Random(seed)
    clients = ("a", "b", "c")
    queue = queue_of(*(Item(name, randomness.randint(1, 9)) for name in clients))
    served: Counter[str] = Counter()
    for _ in range(500):
        item = take(queue)
        served[item.client] += int(item.cost)
        queue.add(Item(item.client, randomness.randint(1, 9)))
        assert max(served[name] for name in clients) - min(served[name] for name in clients) <= 18


def test_a_newcomer_waits_for_at_most_one_item_of_a_long_backlog() -> None:
    queue = queue_of(*items_of("batch", 100, cost=8))
    for _ in range(50):
        take(queue)
    newcomer = Item("single", 2)
    queue.add(newcomer)
    assert newcomer in [take(queue), take(queue)]


def test_idle_time_earns_no_credit() -> None:
    queue = queue_of(Item("early"), *items_of("busy", 50))
    for _ in range(40):
        take(queue)
    for item in items_of("early", 10):
        queue.add(item)
    served = Counter(take(queue).client for _ in range(10))
    assert served["early"] <= 6


def test_a_charge_delays_a_client_and_a_refund_restores_it() -> None:
    queue = queue_of(*items_of("a", 20), *items_of("b", 20))
    queue.charge("a", 5)
    assert [take(queue).client for _ in range(5)] == ["b"] * 5
    queue.charge("b", -5)
    assert Counter(take(queue).client for _ in range(11))["b"] >= 8


def test_items_that_are_not_allowed_are_skipped_and_keep_their_turn() -> None:
    a, b = items_of("a", 2), items_of("b", 2)
    queue = queue_of(*a, *b)
    assert queue.first(lambda client: client == "b") is b[0]
    assert queue.first(is_allowed=lambda item: item is a[1]) is a[1]
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


def test_clients_that_left_leave_no_state() -> None:
    queue = queue_of()
    for index in range(2000):
        queue.add(Item(f"client {index}"))
        if index % 2:
            take(queue)
            take(queue)
    assert len(queue._starts) < 200


def fill(capacity: SharedCapacity, client: str, amount: float) -> float:
    """Adds amounts of a client until one is refused; returns what it holds then."""
    held = 0.0
    while capacity.utilization(client, amount) <= 1:
        capacity.add(client, amount)
        held += amount
    return held


def test_a_client_may_hold_as_much_as_it_leaves_free() -> None:
    capacity = SharedCapacity(1000)
    assert fill(capacity, "a", 10) == pytest.approx(500, abs=20)
    assert fill(capacity, "b", 10) == pytest.approx(333, abs=20)


@pytest.mark.parametrize("clients", [1, 5, 30])
def test_a_newcomer_is_admitted_within_an_equal_share(clients: int) -> None:
    capacity = SharedCapacity(1000)
    for index in range(clients):
        fill(capacity, str(index), 10)
    assert capacity.utilization("newcomer", 1000 / (clients + 2)) <= 1
    assert capacity.utilization("newcomer", 1000) > 1
    assert capacity.total <= 1000 * (1 + sum(1 / (n + 2) for n in range(clients)))


def test_a_client_above_its_part_leaves_room_for_others() -> None:
    capacity = SharedCapacity(900)
    capacity.add("a", 10_000)
    assert capacity.utilization("a", 1) > 1
    assert capacity.utilization("b", 100) <= 1


def test_released_amounts_leave_no_state() -> None:
    capacity = SharedCapacity(10)
    for amount in (0.1, 0.2, 0.3, -0.6):
        capacity.add("a", amount)
    assert capacity._held == {}


def served_until(held: dict[str, float], client: str) -> float:
    """The work until a client is done, if a small piece of every client is served."""
    left, step, work = dict(held), 0.05, 0.0
    while left[client] > 1e-9:
        for name in [name for name, amount in left.items() if amount > 1e-9]:
            left[name] -= step
            work += step
    return work


@pytest.mark.parametrize("seed", range(6))
def test_the_estimated_work_is_that_of_a_simulation(seed: int) -> None:
    randomness = random.Random(seed)
    held = {name: float(randomness.randint(1, 9)) for name in "abc"}
    capacity = SharedCapacity(1000)
    for name, amount in held.items():
        capacity.add(name, amount)
    for name in held:
        expected = served_until(held, name)
        assert capacity.finish_work(name, 0) == pytest.approx(expected, abs=0.3)
    expected = served_until({**held, "new": 2.0}, "new")
    assert capacity.finish_work("new", 2.0) == pytest.approx(expected, abs=0.3)


def test_a_client_may_use_its_quota_at_once_and_then_waits_for_its_debt() -> None:
    clock = FakeClock()
    quota = ClientQuota(30, "s", clock)
    quota.charge("a", 29)
    quota.check("a")
    quota.charge("a", 6)  # an image that was more expensive than expected
    with raises_problem("quota_exceeded") as raised:
        quota.check("a")
    assert raised.value.retry_after_s == pytest.approx(10)  # 5 s of debt at half a second a second
    clock.now_s += 9.9
    with raises_problem("quota_exceeded"):
        quota.check("a")
    clock.now_s += 0.2
    quota.check("a")


def test_a_client_saves_at_most_one_minute() -> None:
    clock = FakeClock()
    quota = ClientQuota(30, "s", clock)
    quota.charge("a", 1)
    clock.now_s += 3600
    quota.charge("a", 31)
    with raises_problem("quota_exceeded"):
        quota.check("a")


def test_a_hundred_thousand_clients_that_send_once_leave_bounded_state() -> None:
    clock = FakeClock()
    quota, recent = ClientQuota(30, "s", clock), RecentClients(clock)
    queue, capacity = queue_of(), SharedCapacity(1000)
    largest: Counter[str] = Counter()
    for index in range(100_000):
        client = f"address:{index}"
        recent.note(client)
        capacity.add(client, 0.1)
        queue.add(Item(client, 0.01))
        take(queue)
        queue.charge(client, 0.04)  # an image that was more expensive than expected
        capacity.add(client, -0.1)
        quota.check(client)
        quota.charge(client, 20)
        clock.now_s += 0.001 if index < 50_000 else 0.1
        largest |= Counter(
            quota=len(quota._balances), recent=len(recent._last_s), queue=len(queue._starts),
            capacity=len(capacity._held),
        )  # fmt: skip
    assert largest["quota"] == 10_000
    assert largest["recent"] <= 10 / 0.001 + 2
    assert max(largest["queue"], largest["capacity"]) < 200
    assert len(quota._balances) <= 40 / 0.1 + 2  # the bucket is full again after 40 s
    assert len(recent._last_s) <= 10 / 0.1 + 2


def test_a_quota_remembers_the_debt_of_a_client_that_others_followed() -> None:
    clock = FakeClock()
    quota = ClientQuota(30, "s", clock)
    quota.charge("in debt", 45)
    for index in range(9_999):
        quota.charge(str(index), 1)
        clock.now_s += 0.001
    with raises_problem("quota_exceeded"):
        quota.check("in debt")

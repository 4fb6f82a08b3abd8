"""Shares of a capacity, and the estimated end of work, against a naive simulation."""

import random

import pytest

from service.inference.fair_sharing import Flow, SharedCapacity


def capacity_of(limit: float, **held: list[float]) -> tuple[SharedCapacity, dict[str, list[Flow]]]:
    """Returns a capacity that these requests of clients hold, and their flows."""
    capacity = SharedCapacity(limit)
    flows = {name: [Flow(name) for _ in amounts] for name, amounts in held.items()}
    for name, amounts in held.items():
        for flow, amount in zip(flows[name], amounts, strict=True):
            capacity.add(flow, amount)
    return capacity, flows


def fill(capacity: SharedCapacity, client: str, amount: float) -> float:
    """Adds requests of a client until one is refused; returns what it holds then."""
    held = 0.0
    while capacity.utilization(Flow(client), amount) <= 1:
        capacity.add(Flow(client), amount)
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
    share = 1000 / (clients + 2)
    assert capacity.utilization(Flow("newcomer"), share / 2) <= 1
    assert capacity.utilization(Flow("newcomer"), 1000) > 1
    assert capacity.total <= 1000 * (1 + sum(1 / (n + 2) for n in range(clients)))


def test_a_request_leaves_room_for_other_requests_of_its_client() -> None:
    capacity = SharedCapacity(900)
    assert capacity.utilization(Flow("a"), 301) > 1
    assert capacity.utilization(Flow("a"), 300) <= 1
    capacity.add(Flow("a"), 300)
    assert fill(capacity, "a", 10) > 50


def test_a_request_of_any_size_is_admitted_alone_and_leaves_room_for_others() -> None:
    capacity, flow = SharedCapacity(900), Flow("a")
    assert capacity.admits(flow, 10_000)
    capacity.add(flow, 10_000)
    assert capacity.admits(flow, 10_000)
    assert not capacity.admits(Flow("a"), 200)
    assert capacity.admits(Flow("a"), 50)
    assert capacity.admits(Flow("b"), 100)


def test_released_amounts_leave_no_state() -> None:
    capacity, flow = SharedCapacity(10), Flow("a")
    for amount in (0.1, 0.2, 0.3):
        capacity.add(flow, amount)
    capacity.add(flow, -0.6)
    assert capacity._held == {}


def served_until(held: dict[str, list[float]], client: str, index: int) -> float:
    """Returns the work until a request is done, if an equal small piece of every client is served.

    A client's piece goes to its request that has got the least so far.
    """
    left = {name: list(amounts) for name, amounts in held.items()}
    got = {name: [0.0] * len(amounts) for name, amounts in held.items()}
    step, work = 0.05, 0.0
    while left[client][index] > 1e-9:
        for name, amounts in left.items():
            waiting = [n for n, amount in enumerate(amounts) if amount > 1e-9]
            if waiting:
                chosen = min(waiting, key=lambda n: got[name][n])
                amounts[chosen] -= step
                got[name][chosen] += step
                work += step
    return work


@pytest.mark.parametrize("seed", range(6))
def test_the_estimated_work_is_that_of_a_simulation(seed: int) -> None:
    randomness = random.Random(seed)
    held = {
        name: [float(randomness.randint(1, 6)) for _ in range(randomness.randint(1, 3))]
        for name in "abc"
    }
    capacity, flows = capacity_of(1000, **held)
    for name, index in (("a", 0), ("c", -1)):
        expected = served_until(held, name, index)
        assert capacity.finish_work(flows[name][index], 0) == pytest.approx(expected, abs=0.6)
    expected = served_until({**held, "new": [2.0]}, "new", 0)
    assert capacity.finish_work(Flow("new"), 2.0) == pytest.approx(expected, abs=0.6)

"""Estimates of inference time, learned from synthetic batches."""

import gc
import weakref
from typing import Any

import pytest

from service.inference.queue import Batch, LinearCost, ThroughputEstimate, Ticket
from tests.service.fake_engine import FakeClock, FakeEngine


def batch_of(engine: Any, rows: int) -> Batch:
    return Batch([Ticket(engine, rows)])


def run_batch(
    throughput: ThroughputEstimate, clock: FakeClock, engine: Any, rows: int, seconds: float
) -> None:
    """Runs one batch alone."""
    running = batch_of(engine, rows)
    throughput.start(running)
    clock.now_s += seconds
    throughput.finish(running)


def cost_of(*batches: tuple[int, float]) -> LinearCost:
    """Returns the cost learned from batches of (rows, seconds)."""
    cost = LinearCost()
    for rows, seconds in batches:
        cost.add(rows, seconds)
    return cost


def test_the_estimate_is_0_before_the_first_batch() -> None:
    engine: Any = FakeEngine()
    assert ThroughputEstimate().seconds(engine, 100, 1) == 0


@pytest.mark.parametrize(("per_batch", "per_row"), [(0.02, 0.008), (0.01, 0.0), (0.0, 0.01)])
def test_fixed_and_per_row_costs_are_separated(per_batch, per_row) -> None:
    cost = cost_of(*((rows, per_batch + per_row * rows) for rows in (2, 8, 128, 4)))
    assert cost.seconds(128, 1) == pytest.approx(per_batch + 128 * per_row)
    assert cost.seconds(1000, 8) == pytest.approx(8 * per_batch + 1000 * per_row)


def test_small_batches_do_not_raise_the_estimate_of_a_large_one() -> None:
    cost = cost_of((128, 0.01), *([(2, 0.009), (8, 0.011)] * 10))
    assert cost.seconds(128, 1) < 0.05


def test_batches_of_equal_size_give_a_cost_per_row() -> None:
    cost = cost_of(*[(10, 5.0)] * 3)
    assert cost.seconds(10, 1) == pytest.approx(5)
    assert cost.seconds(4, 1) == pytest.approx(2)


@pytest.mark.parametrize("batches", [[(2, 1.0), (8, 0.5)], [(2, 0.1), (8, 2.0)]])
def test_neither_cost_is_negative(batches) -> None:
    cost = cost_of(*batches)
    assert cost.seconds(0, 1) >= 0
    assert cost.seconds(1, 1) <= cost.seconds(100, 1)
    assert cost.seconds(100, 0) >= 0


def test_a_single_slow_batch_has_little_weight_and_is_forgotten() -> None:
    cost = cost_of(*[(2, 0.02)] * 20, (2, 60.0))
    assert cost.seconds(2, 1) < 0.03
    for _ in range(50):
        cost.add(2, 0.02)
    assert cost.seconds(2, 1) == pytest.approx(0.02, rel=0.01)


def test_the_estimate_follows_an_engine_that_becomes_slow_within_thirty_batches() -> None:
    cost = cost_of(*[(2, 0.01)] * 50, *[(2, 1.0)] * 30)
    assert cost.seconds(2, 1) > 0.8


def test_engines_have_separate_estimates() -> None:
    clock = FakeClock()
    slow: Any = FakeEngine()
    fast: Any = FakeEngine()
    throughput = ThroughputEstimate(clock)
    for _ in range(3):
        run_batch(throughput, clock, slow, 10, 5.0)
        run_batch(throughput, clock, fast, 10, 0.1)
    assert throughput.seconds(slow, 10, 1) == pytest.approx(5)
    assert throughput.seconds(fast, 10, 1) == pytest.approx(0.1)


def test_batches_that_run_at_the_same_time_share_the_device_equally() -> None:
    clock = FakeClock()
    engine: Any = FakeEngine()
    throughput = ThroughputEstimate(clock)
    long, short = batch_of(engine, 30), batch_of(engine, 10)
    throughput.start(long)
    clock.now_s = 1.0
    throughput.start(short)
    clock.now_s = 3.0
    throughput.finish(short)  # 1 s of device time within 2 s
    clock.now_s = 4.0
    throughput.finish(long)  # the other 3 s
    assert throughput.seconds(engine, 30, 1) == pytest.approx(3)
    assert throughput.seconds(engine, 10, 1) == pytest.approx(1)


def test_the_remaining_time_excludes_what_a_running_batch_has_used() -> None:
    clock = FakeClock()
    engine: Any = FakeEngine()
    throughput = ThroughputEstimate(clock)
    run_batch(throughput, clock, engine, 10, 2.0)
    throughput.start(batch_of(engine, 10))
    assert throughput.remaining_s() == pytest.approx(2)
    clock.now_s += 1.5
    assert throughput.remaining_s() == pytest.approx(0.5)
    clock.now_s += 1.5
    assert throughput.remaining_s() == 0


def test_the_estimate_does_not_keep_a_replaced_engine_in_memory() -> None:
    clock = FakeClock()
    engine: Any = FakeEngine()
    throughput = ThroughputEstimate(clock)
    run_batch(throughput, clock, engine, 1, 1.0)
    reference = weakref.ref(engine)
    del engine
    gc.collect()
    assert reference() is None

"""What batches take, learned from made-up ones."""

import gc
import weakref
from typing import Any

import pytest

from service.inference.throughput import Line, Pace
from service.inference.ticket import Batch, Place
from tests.service.stage import Clock, Numbers


def batch(engine: Any, rows: int) -> Batch:
    return Batch([Place(engine, rows)])


def ran(pace: Pace, clock: Clock, engine: Any, rows: int, seconds: float) -> None:
    """A batch that ran alone."""
    running = batch(engine, rows)
    pace.started(running)
    clock.now_s += seconds
    pace.ended(running)


def learned(*batches: tuple[int, float]) -> Line:
    line = Line()
    for rows, seconds in batches:
        line.learn(rows, seconds)
    return line


def test_an_engine_that_has_not_run_is_taken_for_instant() -> None:
    assert Pace().seconds(Numbers(), 100, 1) == 0


@pytest.mark.parametrize(("per_batch", "per_row"), [(0.02, 0.008), (0.01, 0.0), (0.0, 0.01)])
def test_a_part_for_each_batch_and_one_for_each_row_are_told_apart(per_batch, per_row) -> None:
    line = learned(*((rows, per_batch + per_row * rows) for rows in (2, 8, 128, 4)))
    assert line.at(128, 1) == pytest.approx(per_batch + 128 * per_row)
    assert line.at(1000, 8) == pytest.approx(8 * per_batch + 1000 * per_row)


def test_small_batches_do_not_make_large_ones_seem_slow_where_a_full_one_was_seen() -> None:
    line = learned((128, 0.01), *([(2, 0.009), (8, 0.011)] * 10))
    assert line.at(128, 1) < 0.05


def test_equal_batches_tell_what_as_many_rows_in_such_batches_take() -> None:
    line = learned(*[(10, 5.0)] * 3)
    assert line.at(10, 1) == pytest.approx(5)
    assert line.at(4, 1) == pytest.approx(2)


@pytest.mark.parametrize("batches", [[(2, 1.0), (8, 0.5)], [(2, 0.1), (8, 2.0)]])
def test_neither_part_is_ever_negative(batches) -> None:
    line = learned(*batches)
    assert line.at(0, 1) >= 0
    assert line.at(1, 1) <= line.at(100, 1)
    assert line.at(100, 0) >= 0


def test_a_single_slow_batch_counts_for_little_and_is_forgotten() -> None:
    line = learned(*[(2, 0.02)] * 20, (2, 60.0))
    assert line.at(2, 1) < 0.03
    for _ in range(50):
        line.learn(2, 0.02)
    assert line.at(2, 1) == pytest.approx(0.02, rel=0.01)


def test_an_engine_that_has_become_slow_is_known_as_such_after_some_dozens_of_batches() -> None:
    line = learned(*[(2, 0.01)] * 50, *[(2, 1.0)] * 30)
    assert line.at(2, 1) > 0.8


def test_each_engine_has_its_own_pace() -> None:
    clock = Clock()
    pace, slow, fast = Pace(clock), Numbers(), Numbers()
    for _ in range(3):
        ran(pace, clock, slow, 10, 5.0)
        ran(pace, clock, fast, 10, 0.1)
    assert pace.seconds(slow, 10, 1) == pytest.approx(5)
    assert pace.seconds(fast, 10, 1) == pytest.approx(0.1)


def test_batches_that_run_at_the_same_time_have_the_device_in_equal_parts() -> None:
    clock, engine = Clock(), Numbers()
    pace, long, short = Pace(clock), batch(engine, 30), batch(engine, 10)
    pace.started(long)
    clock.now_s = 1.0
    pace.started(short)
    clock.now_s = 3.0
    pace.ended(short)  # it had one second of two
    clock.now_s = 4.0
    pace.ended(long)  # and this one the other three
    assert pace.seconds(engine, 30, 1) == pytest.approx(3)
    assert pace.seconds(engine, 10, 1) == pytest.approx(1)


def test_what_a_running_batch_has_had_already_is_not_waited_for_again() -> None:
    clock, engine = Clock(), Numbers()
    pace = Pace(clock)
    ran(pace, clock, engine, 10, 2.0)
    pace.started(batch(engine, 10))
    assert pace.left() == pytest.approx(2)
    clock.now_s += 1.5
    assert pace.left() == pytest.approx(0.5)
    clock.now_s += 1.5
    assert pace.left() == 0


def test_a_replaced_engine_is_not_kept_alive() -> None:
    clock, engine = Clock(), Numbers()
    pace = Pace(clock)
    ran(pace, clock, engine, 1, 1.0)
    held = weakref.ref(engine)
    del engine
    gc.collect()
    assert held() is None

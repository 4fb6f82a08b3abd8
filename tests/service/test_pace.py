"""Seconds per row, learned from batches."""

import gc
import weakref

import pytest

from service.pace import Pace
from tests.service.stage import Numbers


def test_an_engine_that_has_not_run_is_taken_for_instant() -> None:
    assert Pace().seconds(Numbers(), 100) == 0


def test_equal_batches_give_their_own_pace_and_each_engine_has_its_own() -> None:
    pace = Pace()
    slow, fast = Numbers(), Numbers()
    for _ in range(3):
        pace.learn(slow, 10, 5.0)
        pace.learn(fast, 10, 0.1)
    assert pace.seconds(slow, 4) == pytest.approx(2)
    assert pace.seconds(fast, 100) == pytest.approx(1)


def test_a_large_batch_weighs_more_than_a_small_one() -> None:
    pace = Pace()
    pace.learn(engine := Numbers(), 1, 1.0)
    pace.learn(engine, 99, 9.9)
    assert 0.1 < pace.seconds(engine, 1) < 0.12


def test_a_single_slow_batch_is_forgotten_after_some_dozens_of_good_ones() -> None:
    pace = Pace()
    pace.learn(engine := Numbers(), 2, 60.0)
    for _ in range(50):
        pace.learn(engine, 2, 0.02)
    assert pace.seconds(engine, 1) == pytest.approx(0.01, rel=0.05)


def test_a_replaced_engine_is_not_kept_alive() -> None:
    pace, engine = Pace(), Numbers()
    pace.learn(engine, 1, 1.0)
    held = weakref.ref(engine)
    del engine
    gc.collect()
    assert held() is None

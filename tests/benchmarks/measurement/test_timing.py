import gc
import time

import pytest
import torch

from benchmarks.measurement.timing import alternating_seconds, paired_seconds

CPU = torch.device("cpu")


def test_works_take_turns_after_warming_up() -> None:
    order = []
    works = [lambda name=name: order.append(name) for name in "AB"]
    seconds = alternating_seconds(works, repeats=2, warmups=1, device=CPU)
    assert "".join(order) == "AB" + "ABAB"
    assert [len(each) for each in seconds] == [2, 2]


def test_seconds_are_wall_clock_time() -> None:
    short, long = paired_seconds(lambda: None, lambda: time.sleep(0.02), 2, 0, CPU)
    assert min(long) >= 0.02 > min(short)


def test_the_garbage_collector_is_on_again_even_after_a_failure() -> None:
    def fail() -> None:
        assert not gc.isenabled()
        raise ValueError

    with pytest.raises(ValueError):
        alternating_seconds([fail], repeats=1, warmups=0, device=CPU)
    assert gc.isenabled()

"""Alternating measurements."""

import gc
from types import SimpleNamespace

import pytest
import torch

from benchmarks.measurement import timing
from benchmarks.measurement.timing import alternating_seconds, paired_seconds

CPU = torch.device("cpu")


def test_functions_alternate_after_the_warm_up() -> None:
    order = []
    works = [lambda name=name: order.append(name) for name in "AB"]
    seconds = alternating_seconds(works, repeats=2, warmups=1, device=CPU)
    assert "".join(order) == "AB" + "ABAB"
    assert [len(times) for times in seconds] == [2, 2]


def test_seconds_are_those_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    short, long = paired_seconds(lambda: wait(1), lambda: wait(4), 2, 0, CPU)
    assert (short, long) == ([1, 1], [4, 4])


def test_the_garbage_collector_is_enabled_again_after_an_error() -> None:
    def fail() -> None:
        assert not gc.isenabled()
        raise ValueError

    with pytest.raises(ValueError):
        alternating_seconds([fail], repeats=1, warmups=0, device=CPU)
    assert gc.isenabled()

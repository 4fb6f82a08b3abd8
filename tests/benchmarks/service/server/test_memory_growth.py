"""Memory of a process tree."""

import os

import pytest

from benchmarks.service.server.memory_growth import growth, sampled
from benchmarks.service.server.process_tree import Memory, memory, resident


def test_growth_is_relative_to_the_end_of_the_warm_up() -> None:
    samples = [Memory(at, 50 if at < 10 else 100 + at, 7) for at in range(111)]
    assert growth(samples, 10, "rss") == pytest.approx((210 - 2.5) / (110 + 2.5) - 1)
    assert growth(samples, 10, "pss") == 0


def test_rss_and_pss_cover_the_process_tree() -> None:
    measured = memory(os.getpid())
    assert measured.pss is not None
    assert 0 < measured.pss <= measured.rss
    rss_only = resident(os.getpid())
    assert (rss_only.pss, rss_only.rss) == (None, pytest.approx(measured.rss, rel=0.1))


def test_memory_is_sampled_at_start_and_end_of_the_block() -> None:
    with sampled(os.getpid(), 60) as samples:
        assert len(samples) == 1
    assert len(samples) == 2
    assert samples[0].at_s < samples[1].at_s

import os

import pytest

from benchmarks.service.server.memory_growth import growth, sampled
from benchmarks.service.server.process_tree import Memory, memory, resident


def test_growth_is_of_the_end_over_the_moment_after_settling() -> None:
    samples = [Memory(at, 50 if at < 10 else 100 + at, 7) for at in range(111)]
    assert growth(samples, 10, "rss") == pytest.approx((210 - 2.5) / (110 + 2.5) - 1)
    assert growth(samples, 10, "pss") == 0


def test_memory_is_that_of_the_whole_tree() -> None:
    held = memory(os.getpid())
    assert held.pss is not None
    assert 0 < held.pss <= held.rss
    quick = resident(os.getpid())
    assert (quick.pss, quick.rss) == (None, pytest.approx(held.rss, rel=0.1))


def test_samples_begin_and_end_with_the_block() -> None:
    with sampled(os.getpid(), 60) as samples:
        assert len(samples) == 1
    assert len(samples) == 2
    assert samples[0].at_s < samples[1].at_s

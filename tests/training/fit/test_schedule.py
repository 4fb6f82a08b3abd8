"""Warm-up and cosine."""

import math

import pytest

from eulerlora.errors import SettingsError
from training.fit.optimisation import warmup_cosine

CIFAR_STEPS = 16 * 1563


def test_the_schedule_is_the_paper_s() -> None:
    assert CIFAR_STEPS == 25_008
    share = warmup_cosine(CIFAR_STEPS, 500)
    assert share(0) == 0
    assert share(250) == 0.5
    assert share(500) == 1
    for step in (501, 12_754, 20_000, 25_007):
        expected = max(0, (1 + math.cos(math.pi * (step - 500) / (CIFAR_STEPS - 500))) / 2)
        assert share(step) == pytest.approx(expected, abs=1e-12)
    assert share(CIFAR_STEPS) == pytest.approx(0, abs=1e-12)


def test_without_warm_up_it_starts_at_the_peak() -> None:
    assert warmup_cosine(10, 0)(0) == 1


def test_a_run_that_ends_in_its_warm_up_is_refused() -> None:
    with pytest.raises(SettingsError, match="500 steps"):
        warmup_cosine(500, 500)

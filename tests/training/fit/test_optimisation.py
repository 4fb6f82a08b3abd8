"""Learning rate schedule."""

import math

import pytest

from eulerlora.errors import SettingsError
from training.fit.optimisation import warmup_cosine

CIFAR_STEPS = 16 * 1563


def test_the_schedule_follows_the_paper() -> None:
    assert CIFAR_STEPS == 25_008
    schedule = warmup_cosine(CIFAR_STEPS, 500)
    assert schedule(0) == 0
    assert schedule(250) == 0.5
    assert schedule(500) == 1
    for step in (501, 12_754, 20_000, 25_007):
        expected = max(0, (1 + math.cos(math.pi * (step - 500) / (CIFAR_STEPS - 500))) / 2)
        assert schedule(step) == pytest.approx(expected, abs=1e-12)
    assert schedule(CIFAR_STEPS) == pytest.approx(0, abs=1e-12)


def test_without_warm_up_the_first_step_has_the_peak_rate() -> None:
    assert warmup_cosine(10, 0)(0) == 1


@pytest.mark.parametrize(("steps", "warmup"), [(60, 6), (5_000, 500), (25_008, 500), (3, 0)])
def test_automatic_warm_up_is_a_tenth_of_the_run_and_at_most_500_steps(
    steps: int, warmup: int
) -> None:
    automatic, explicit = warmup_cosine(steps, "auto"), warmup_cosine(steps, warmup)
    assert [automatic(step) for step in range(steps)] == [explicit(step) for step in range(steps)]


def test_a_run_within_its_warm_up_is_refused_with_the_settings_to_change() -> None:
    with pytest.raises(SettingsError) as caught:
        warmup_cosine(60, 500)
    assert str(caught.value) == (
        "expected warmup_steps below the run's 60 steps, got 500; set fewer warmup_steps or more "
        "epochs, such as --set training.warmup_steps=auto"
    )

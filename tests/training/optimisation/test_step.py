"""Learning rate schedule and optimisers."""

import math

import pytest
import torch
from torch import nn

from eulerlora_contract.errors import SettingsError
from training.optimisation.step import OPTIMISER_TYPES, warmup_cosine

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


@pytest.mark.parametrize(("steps", "warmup"), [(60, 6), (5_000, 500), (25_008, 500), (3, 0)])
def test_automatic_warm_up_is_a_tenth_of_the_run_and_at_most_500_steps(
    steps: int, warmup: int
) -> None:
    automatic, explicit = warmup_cosine(steps, "auto"), warmup_cosine(steps, warmup)
    assert [automatic(step) for step in range(steps)] == [explicit(step) for step in range(steps)]


def test_a_run_within_its_warm_up_is_refused_with_the_setting_to_change() -> None:
    with pytest.raises(SettingsError, match="warmup_steps"):
        warmup_cosine(60, 500)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("adamw", 2 - 0.1 * 0.3 * 2), ("adam-l2", 2 - 0.1)],  # the first step of Adam is the rate
)
def test_the_optimiser_decays_weights_or_adds_the_decay_to_the_gradient(
    name: str, expected: float
) -> None:
    parameter = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    optimiser = OPTIMISER_TYPES[name]([parameter], lr=0.1, weight_decay=0.3)
    parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    assert parameter.item() == pytest.approx(expected)

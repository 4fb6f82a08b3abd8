"""Learning rate schedule."""

import math

import pytest
import torch
from torch import nn

from eulerlora.errors import SettingsError
from training.fit.optimisation import OPTIMISERS, warmup_cosine

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


@pytest.mark.parametrize("name", ["adamw", "adam-l2"])
def test_the_optimiser_decays_weights_or_adds_the_decay_to_the_gradient(name: str) -> None:
    """Two steps of one number by the formulas of Kingma and Ba, and Loshchilov and Hutter."""
    rate, decay, beta_1, beta_2 = 0.1, 0.3, 0.9, 0.999
    weight, first, second = 2.0, 0.0, 0.0
    parameter = nn.Parameter(torch.tensor(weight, dtype=torch.float64))
    optimiser = OPTIMISERS[name]([parameter], lr=rate, weight_decay=decay)
    for step in (1, 2):
        optimiser.zero_grad()
        (parameter**2).backward()
        optimiser.step()
        gradient = 2 * weight
        if name == "adam-l2":
            gradient += decay * weight
        else:
            weight -= rate * decay * weight
        first = beta_1 * first + (1 - beta_1) * gradient
        second = beta_2 * second + (1 - beta_2) * gradient**2
        corrected = first / (1 - beta_1**step), second / (1 - beta_2**step)
        weight -= rate * corrected[0] / (math.sqrt(corrected[1]) + 1e-8)
        assert parameter.item() == pytest.approx(weight)

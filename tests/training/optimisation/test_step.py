"""Learning rate schedule and optimisers."""

import math
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from eulerlora_contract.errors import SettingsError
from training.optimisation.batches import RunLength
from training.optimisation.step import Objective, Optimisation
from training.recipe.schema import AdapterTraining

CIFAR_STEPS = 16 * 1563


class Flat(Objective[int]):
    """Has a loss whose gradient is zero."""

    def draw(self, seed: int, step: int, process: int) -> int:
        return 0

    def loss(self, network: Any, images: Tensor, labels: Tensor, draw: int) -> Tensor:
        weight: Tensor = network.weight
        return 0 * weight.sum()

    def weight(self, labels: Tensor) -> Tensor:
        return labels.new_ones(())


def optimisation_of(steps: int = 1, **changes: object) -> Optimisation:
    """On a single weight of 2, for so many steps."""
    settings = AdapterTraining.model_validate({"epochs": 1} | changes)
    objective = Flat(nn.Linear(1, 1, bias=False))
    nn.init.constant_(objective.network.weight, 2.0)
    return Optimisation(objective, settings, RunLength(steps, 1, 1), Accelerator(cpu=True), 0)


def test_the_schedule_follows_the_paper() -> None:
    assert CIFAR_STEPS == 25_008
    schedule = optimisation_of(CIFAR_STEPS, warmup_steps=500).schedule
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
    automatic, explicit = (
        optimisation_of(steps, warmup_steps=setting).schedule for setting in ("auto", warmup)
    )
    assert [automatic(step) for step in range(steps)] == [explicit(step) for step in range(steps)]


def test_a_run_within_its_warm_up_is_refused_with_the_setting_to_change() -> None:
    with pytest.raises(SettingsError, match="warmup_steps"):
        optimisation_of(60, warmup_steps=500)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("adamw", 2 - 0.1 * 0.3 * 2), ("adam-l2", 2 - 0.1)],  # the first step of Adam is the rate
)
def test_the_optimiser_decays_weights_or_adds_the_decay_to_the_gradient(
    name: Any, expected: float
) -> None:
    optimisation = optimisation_of(
        learning_rate=0.1, optimiser=name, weight_decay=0.3, warmup_steps=0
    )
    optimisation.step(0, torch.zeros(1, 3, 2, 2), torch.zeros(1))
    assert optimisation.network.weight.item() == pytest.approx(expected)

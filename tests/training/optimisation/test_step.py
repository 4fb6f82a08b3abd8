"""Learning rate schedule, and steps with activation checkpointing."""

import math
from collections.abc import Callable

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from eulerlora.settings import BackboneSettings
from eulerlora_contract.errors import SettingsError
from tests.conftest import TINY_BACKBONE, random_backbone, random_network
from training.adaptation.objective import AdapterObjective
from training.optimisation.batches import RunLength
from training.optimisation.step import OPTIMISER_TYPES, Objective, Optimisation, warmup_cosine
from training.pretraining.classifier import Classifier, ClassifierObjective
from training.recipe.pretraining import PretrainingStage
from training.recipe.schema import AdapterTraining

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


DEEP = BackboneSettings(image_size=32, patch_size=8, layers=6, heads=2, width=16, mlp_width=24)
IMAGES = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 1, 0, 2])

MakeObjective = Callable[..., Objective]


def adapters(recompute: bool, backbone: BackboneSettings = TINY_BACKBONE) -> Objective:
    network = random_network(backbone=random_backbone(backbone))
    weights = torch.tensor([0.2, 0.5, 0.3])
    return AdapterObjective(
        network, AdapterTraining(samples=2, activation_checkpointing=recompute), weights
    )


def classifier(recompute: bool, backbone: BackboneSettings = TINY_BACKBONE) -> Objective:
    stage = PretrainingStage(
        epochs=1, image_size=32, label_smoothing=0.1, activation_checkpointing=recompute
    )
    torch.manual_seed(0)
    return ClassifierObjective(Classifier(backbone, stage, (3,)), stage)


BOTH = pytest.mark.parametrize("objective", [adapters, classifier])


def gradients(
    objective: Objective, precision: str, micro_batch_rows: int | None
) -> dict[str, Tensor]:
    settings = AdapterTraining(
        epochs=1, precision=precision, micro_batch_rows=micro_batch_rows, clip_norm=1e9
    )
    optimisation = Optimisation(
        objective, settings, RunLength(16_032, 32, 1), Accelerator(cpu=True), seed=4
    )
    optimisation.step(3, IMAGES, LABELS)
    parameters = objective.network.named_parameters()
    return {name: p.grad for name, p in parameters if p.grad is not None}


@BOTH
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("micro_batch_rows", [None, 8])
def test_recomputation_changes_no_gradient(
    objective: MakeObjective, precision: str, micro_batch_rows: int | None
) -> None:
    plain = gradients(objective(False), precision, micro_batch_rows)
    recomputed = gradients(objective(True), precision, micro_batch_rows)
    assert plain.keys() == recomputed.keys()
    assert any(gradient.abs().max() > 1e-3 for gradient in plain.values())
    torch.testing.assert_close(recomputed, plain, atol=1e-6, rtol=1e-6)


def stored_bytes(objective: Objective) -> int:
    """The bytes of activations that a forward pass stores for the backward pass."""
    parameters = {p.untyped_storage().data_ptr() for p in objective.network.parameters()}
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with saved_tensors_hooks(record, lambda tensor: tensor):
        draw = objective.draw(4, 0, 0)
        objective.loss(objective.network, IMAGES, LABELS, draw)
    return sum(sizes.values())


@BOTH
def test_recomputation_stores_the_inputs_of_blocks_only(objective: MakeObjective) -> None:
    plain, recomputed = stored_bytes(objective(False, DEEP)), stored_bytes(objective(True, DEEP))
    assert recomputed < plain / 3

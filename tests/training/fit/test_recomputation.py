"""The same gradients in less memory."""

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from eulerlora.settings import BackboneSettings
from tests.conftest import TINY_BACKBONE, random_backbone, random_network
from training.adaptation.objective import AdapterObjective
from training.fit.objective import Objective
from training.fit.optimisation import Optimisation
from training.fit.run import Run
from training.pretraining.classifier import Classifier, ClassifierObjective
from training.recipe.pretraining import PretrainingStage
from training.recipe.schema import AdapterTraining

DEEP = BackboneSettings(image_size=32, patch_size=8, layers=6, heads=2, width=16, mlp_width=24)
IMAGES = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 1, 0, 2])


def adapters(recompute: bool, backbone: BackboneSettings = TINY_BACKBONE) -> Objective:
    training = AdapterTraining(epochs=1, samples=2, activation_checkpointing=recompute)
    network = random_network(backbone=random_backbone(backbone))
    return AdapterObjective(network, training, torch.tensor([0.2, 0.5, 0.3]), seed=4)


def classifier(recompute: bool, backbone: BackboneSettings = TINY_BACKBONE) -> Objective:
    stage = PretrainingStage(
        epochs=1, image_size=32, label_smoothing=0.1, activation_checkpointing=recompute
    )
    torch.manual_seed(0)
    run = Run(Accelerator(cpu=True), seed=0, recipe=stage, state=Path("none"))
    return ClassifierObjective(Classifier(backbone, stage, (3,)), stage, run)


BOTH = pytest.mark.parametrize("objective", [adapters, classifier])


def labels_for(objective: Objective) -> Tensor:
    one_hot = isinstance(objective, ClassifierObjective)
    return nn.functional.one_hot(LABELS).float() if one_hot else LABELS


def gradients(
    objective: Objective, precision: str, micro_batch_rows: int | None
) -> dict[str, Tensor]:
    """What one step of training leaves in the parameters' gradients."""
    settings = AdapterTraining(
        epochs=1, precision=precision, micro_batch_rows=micro_batch_rows, clip_norm=1e9
    )
    optimisation = Optimisation(objective, settings, 501, Accelerator(cpu=True))
    optimisation.step(3, IMAGES, labels_for(objective))
    return {name: each.grad for name, each in objective.named_parameters() if each.grad is not None}


@BOTH
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("micro_batch_rows", [None, 8])
def test_gradients_are_those_of_kept_activations(
    objective, precision: str, micro_batch_rows: int | None
) -> None:
    plain = gradients(objective(False), precision, micro_batch_rows)
    again = gradients(objective(True), precision, micro_batch_rows)
    assert plain.keys() == again.keys()
    assert any(each.abs().max() > 1e-3 for each in plain.values())
    torch.testing.assert_close(again, plain, atol=1e-6, rtol=1e-6)


def kept_bytes(objective: Objective) -> int:
    """Bytes of activations that a forward pass leaves for the backward pass, each counted once."""
    own = {each.untyped_storage().data_ptr() for each in objective.parameters()}
    found: dict[int, int] = {}
    alive: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        objective(IMAGES, labels_for(objective), 0)
    return sum(found.values())


@BOTH
def test_only_the_blocks_inputs_are_kept(objective) -> None:
    plain, again = kept_bytes(objective(False, DEEP)), kept_bytes(objective(True, DEEP))
    assert again < plain / 3


@BOTH
def test_the_weights_keep_their_names(objective) -> None:
    plain, again = objective(False).state_dict(), objective(True).state_dict()
    assert list(plain) == list(again)

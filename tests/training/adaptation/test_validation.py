"""The metrics of every epoch, and the adapters of the epoch with the lowest validation loss."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss

from eulerlora.nn.network import predict_images
from eulerlora.settings import Draw
from tests.conftest import random_network
from training.adaptation.objective import AdapterObjective, trajectory_losses
from training.adaptation.validation import EpochValidation
from training.data.images import LabelledImage

PIXELS = torch.randint(
    0, 256, (9, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
LABELS = [0, 1, 2, 0, 1, 2, 0, 1, 2]
IMAGES = [LabelledImage(str(n), p, y) for n, (p, y) in enumerate(zip(PIXELS, LABELS, strict=True))]


def validation_loss(network) -> float:
    outputs = predict_images(network, PIXELS / 255, [Draw(mode="det")] * len(IMAGES))
    probabilities = np.stack([o.log_probabilities.exp().mean(dim=0).numpy() for o in outputs])
    return log_loss(LABELS, probabilities)


def test_the_adapters_with_the_lowest_loss_are_restored() -> None:
    network = random_network()
    validation = EpochValidation(network, IMAGES, epochs=4)
    assert validation.epochs_without_gain() == 0
    losses, weights = [], []
    for scale in (3.0, 0.2, 2.0, 1.5):
        with torch.no_grad():
            network.heads.weight.mul_(scale)
        validation.validate()
        losses.append(validation_loss(network))
        weights.append(network.heads.weight.detach().clone())
        lowest = int(np.argmin(losses))
        assert validation.last["validation_nll"] == pytest.approx(losses[-1], rel=1e-4)
        assert validation.last["best_epoch"] == lowest + 1
        assert validation.epochs_without_gain() == len(losses) - 1 - lowest
    result = validation.result()
    assert result["validation_by_epoch"]["det"]["nll"] == pytest.approx(losses, rel=1e-4)
    assert result["best_epoch"] == lowest + 1
    assert result["validation_images"] == 9
    assert torch.equal(network.heads.weight, weights[lowest])
    assert lowest != 3


def test_the_state_continues_in_another_process() -> None:
    first, network = random_network(), random_network(seed=1)
    best = EpochValidation(first, IMAGES, epochs=2)
    best.validate()
    resumed = EpochValidation(network, IMAGES, epochs=2)
    for name, tensor in resumed.tensors.items():
        tensor.copy_(best.tensors[name])
    with torch.no_grad():
        network.heads.weight.fill_(40.0)
        network.heads.bias.copy_(torch.tensor([-50.0, 0.0, 50.0]))
    resumed.validate()
    assert resumed.result()["best_epoch"] == 1
    assert torch.equal(network.heads.weight, first.heads.weight)


def test_the_metrics_of_both_modes_are_those_of_independent_libraries() -> None:
    network = random_network()
    validation = EpochValidation(network, IMAGES, epochs=2, samples=3, keep_best=False)
    validation.validate()
    with torch.no_grad():
        network.heads.weight.mul_(2.0)
    validation.validate()
    result = validation.result()
    assert "best_epoch" not in result
    draws = [Draw(mode="stoch", samples=3, seed=seed) for seed in range(len(IMAGES))]
    for mode, mode_draws in (("det", [Draw(mode="det")] * len(IMAGES)), ("stoch", draws)):
        outputs = predict_images(network, PIXELS / 255, mode_draws)
        probabilities = np.stack([o.log_probabilities.exp().mean(dim=0).numpy() for o in outputs])
        metrics = result["validation_by_epoch"][mode]
        assert metrics["nll"][1] == pytest.approx(log_loss(LABELS, probabilities), rel=1e-4)
        accuracy = accuracy_score(LABELS, probabilities.argmax(axis=1))
        assert metrics["accuracy"][1] == pytest.approx(accuracy)
        error = ((probabilities - np.eye(3)[LABELS]) ** 2).sum(axis=1).mean()
        assert metrics["brier"][1] == pytest.approx(error, rel=1e-4)
        assert metrics["nll"][0] != metrics["nll"][1]
    assert result["validation_by_epoch"]["det"] != result["validation_by_epoch"]["stoch"]


def test_an_objective_is_finished_after_its_patience() -> None:
    network = random_network()
    validation = EpochValidation(network, IMAGES, epochs=3)
    objective, patient = (
        AdapterObjective(
            network, 1, trajectory_losses, torch.ones(3), validation=validation, patience=patience
        )
        for patience in (1, None)
    )
    objective.after_epoch()
    assert not objective.finished
    with torch.no_grad():
        network.heads.bias.copy_(torch.tensor([-50.0, 0.0, 50.0]))
    objective.after_epoch()
    assert objective.finished
    assert not patient.finished
    assert objective.epoch_metrics()["best_epoch"] == 1
    assert len(validation.result()["validation_by_epoch"]["det"]["nll"]) == 2

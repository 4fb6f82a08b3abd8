"""SWAG: moments, and SGD against a plain loop."""

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora_lab.methods.posteriors import MOMENTUM, Moments, SWAGSettings
from lab.tests.methods.conftest import GivenRun, network_like
from tests.conftest import random_network
from training.adaptation.objective import AdapterObjective
from training.recipe.schema import AdapterTraining

SWAG = SWAGSettings(learning_rate=1e-2, steps=6, snapshots=3)
SEED = 4


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    for step in range(6):
        generator = torch.Generator().manual_seed(step)
        yield torch.rand(4, 3, 32, 32, generator=generator), torch.tensor([0, 1, 2, 1])


def objective_of(network: AdaptedVisionTransformer) -> AdapterObjective:
    return AdapterObjective(network, AdapterTraining(samples=1, sampling=False), torch.ones(3))


def test_moments_are_those_of_numpy() -> None:
    values = np.random.default_rng(0).normal(3.0, 1e-4, (7, 2, 5))
    moments = Moments()
    for value in values:
        moments.add([("a", torch.from_numpy(value).float())])
    stored = values.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(moments.first["a"], stored.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.variances["a"], stored.var(axis=0), rtol=1e-3)
    assert moments.count == 7


def test_the_network_has_the_moments_of_a_plain_loop_of_sgd() -> None:
    source = random_network()
    reference = copy.deepcopy(source)
    objective = objective_of(reference)
    parameters = dict(reference.adapter_parameters())
    velocities = {name: torch.zeros_like(p) for name, p in parameters.items()}
    snapshots: list[dict[str, Tensor]] = []
    for step, (images, labels) in enumerate(batches()):
        reference.zero_grad()
        draw = objective.draw(SEED, step, 0)
        (objective.loss(reference, images, labels, draw) / len(images)).backward()
        norm = sum(p.grad.square().sum() for p in parameters.values()).sqrt()
        with torch.no_grad():
            for name, p in parameters.items():
                gradient = p.grad * min(1.0, 0.5 / (norm + 1e-6))
                velocities[name] = MOMENTUM * velocities[name] + gradient
                p.sub_(1e-2 * velocities[name])
        if step % 2 == 1:
            snapshots.append({name: p.detach().clone() for name, p in parameters.items()})

    network = network_like(source, SWAG)
    objective = objective_of(network)

    def losses(steps: int) -> Iterator[Tensor]:
        assert steps == 6
        for step, (images, labels) in enumerate(batches()):
            draw = objective.draw(SEED, step, 0)
            yield objective.loss(network, images, labels, draw) / len(images)

    network.method.after_training(network, GivenRun(further_losses=losses))
    assert network.method.settings == SWAG
    for name in parameters:
        values = torch.stack([snapshot[name] for snapshot in snapshots]).double()
        mean = network.get_parameter(name).double()
        std = network.get_parameter(f"{name}_root").double().square()
        torch.testing.assert_close(mean, values.mean(dim=0), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(std, values.std(dim=0, correction=0), rtol=1e-2, atol=1e-5)

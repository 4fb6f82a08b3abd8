"""training.bayesian.swag: moments, and SGD against a plain loop."""

import copy

import numpy as np
import torch
from torch import Tensor

from eulerlora.methods.settings import SWAGSettings
from eulerlora.nn.network import AdaptedVisionTransformer
from tests.conftest import random_network
from training.adaptation.objective import AdapterObjective, trajectory_loss
from training.bayesian.swag import MOMENTUM, Moments, fit_swag

SETTINGS = SWAGSettings(learning_rate=1e-2, steps=6, snapshots=3)


class FewBatches:
    """Two fixed batches an epoch."""

    seed = 4

    def epoch(self, epoch: int, skip: int) -> list[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(epoch)
        return [
            (torch.rand(4, 3, 32, 32, generator=generator), torch.tensor([0, 1, 2, 1]))
            for _ in range(2)
        ]


def objective_of(network: AdaptedVisionTransformer) -> AdapterObjective:
    return AdapterObjective(network, 2, trajectory_loss, torch.ones(3))


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
    batches = [batch for epoch in range(3) for batch in FewBatches().epoch(epoch, 0)]
    for step, (images, labels) in enumerate(batches):
        reference.zero_grad()
        draw = objective.draw(FewBatches.seed, step, 0)
        (objective.loss(reference, images, labels, draw) / len(images)).backward()
        norm = sum(p.grad.square().sum() for p in parameters.values()).sqrt()
        with torch.no_grad():
            for name, p in parameters.items():
                gradient = p.grad * min(1.0, 0.5 / (norm + 1e-6))
                velocities[name] = MOMENTUM * velocities[name] + gradient
                p.sub_(1e-2 * velocities[name])
        if step % 2 == 1:
            snapshots.append({name: p.detach().clone() for name, p in parameters.items()})

    network = fit_swag(objective_of(source), source, FewBatches(), SETTINGS, clip_norm=0.5)
    for name in parameters:
        values = torch.stack([snapshot[name] for snapshot in snapshots]).double()
        mean = network.get_parameter(name).double()
        std = network.get_parameter(f"{name}_root").double().square()
        torch.testing.assert_close(mean, values.mean(dim=0), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(std, values.std(dim=0, correction=0), rtol=1e-2, atol=1e-5)

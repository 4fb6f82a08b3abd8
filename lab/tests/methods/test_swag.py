"""SWAG: moments, and SGD against a plain loop."""

import copy
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from eulerlora.nn.method import MethodSettings
from eulerlora.nn.network import AdaptedVisionTransformer
from lab.tests.methods.settings import settings_of
from tests.conftest import random_network
from training.adaptation.objective import AdapterObjective
from training.recipe.schema import AdapterTraining

SWAG = settings_of("swag", learning_rate=1e-2, steps=6, snapshots=3)
SEED = 4

Network = Callable[..., AdaptedVisionTransformer]


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    for step in range(6):
        generator = torch.Generator().manual_seed(step)
        yield torch.rand(4, 3, 32, 32, generator=generator), torch.tensor([0, 1, 2, 1])


def objective_of(network: AdaptedVisionTransformer) -> AdapterObjective:
    return AdapterObjective(network, AdapterTraining(samples=1, sampling=False), torch.ones(3))


def test_moments_are_those_of_numpy_for_weights_that_hardly_change(
    network_like: Network, after_training: Callable[..., MethodSettings]
) -> None:
    network = network_like(random_network(), settings_of("swag", steps=7, snapshots=7))
    bias, values = network.heads.bias, []
    with torch.no_grad():
        bias.fill_(3.0)

    def losses(steps: int) -> Iterator[Tensor]:
        for step in range(steps):
            slopes = torch.randn(bias.shape, generator=torch.Generator().manual_seed(step))
            others = sum(0 * parameter.sum() for _, parameter in network.adapter_parameters())
            yield others + (0.1 * slopes * bias).sum()
            values.append(bias.detach().double().numpy().copy())

    after_training(network, further_losses=losses, clip_norm=1e9)
    exact = np.stack(values)
    assert len(exact) == 7
    assert 0 < exact.std(axis=0).max() < 1e-3
    np.testing.assert_allclose(bias.detach(), exact.mean(axis=0), rtol=1e-7)
    std = network.heads.bias_root.detach().double().square()
    np.testing.assert_allclose(std, exact.std(axis=0), rtol=1e-3)


def test_the_network_has_the_moments_of_a_plain_loop_of_sgd(
    network_like: Network, after_training: Callable[..., MethodSettings]
) -> None:
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
                velocities[name] = 0.9 * velocities[name] + gradient
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

    assert after_training(network, further_losses=losses) == SWAG
    for name in parameters:
        values = torch.stack([snapshot[name] for snapshot in snapshots]).double()
        mean = network.get_parameter(name).double()
        std = network.get_parameter(f"{name}_root").double().square()
        torch.testing.assert_close(mean, values.mean(dim=0), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(std, values.std(dim=0, correction=0), rtol=1e-2, atol=1e-5)

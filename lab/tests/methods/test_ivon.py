"""IVON against ivon-opt, and against the exact posterior of a linear regression."""

from collections.abc import Callable

import ivon
import pytest
import torch
from accelerate import Accelerator
from torch import Generator, Tensor, nn

from eulerlora_lab.methods.variational import IVON
from lab.tests.methods.settings import settings_of
from tests.conftest import random_network
from training.adaptation.objective import AdapterObjective
from training.optimisation.batches import RunLength
from training.optimisation.step import Optimisation
from training.recipe.schema import AdapterTraining

IMAGES = torch.rand(6, 3, 32, 32, generator=Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 1, 0, 2])


def sampled_step(
    optimiser: IVON, noise: list[Tensor], loss: Callable[[list[Tensor]], Tensor], rate: float
) -> None:
    optimiser.param_groups[0]["lr"] = rate
    optimiser.zero_grad()
    pairs = zip(optimiser.means, optimiser.roots, noise, strict=True)
    loss([mean + root.square() * z for mean, root, z in pairs]).backward()
    optimiser.step()


def test_steps_are_those_of_ivon_opt() -> None:
    generator = Generator().manual_seed(3)
    inputs, targets = torch.randn(20, 4, generator=generator), torch.arange(20) % 3
    start = [torch.randn(3, 4, generator=generator), torch.randn(3, generator=generator)]

    def loss(weights: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(inputs @ weights[0].T + weights[1], targets)

    means = [nn.Parameter(tensor.clone()) for tensor in start]
    roots = [nn.Parameter(torch.zeros_like(tensor)) for tensor in start]
    optimiser = IVON(means, roots, 50.0, 0.3, 0.9, weight_decay=0.02)
    copies = [nn.Parameter(tensor.clone()) for tensor in start]
    reference = ivon.IVON(copies, lr=0.0, ess=50.0, hess_init=0.3, beta2=0.9, weight_decay=0.02)
    for step in range(6):
        rate = 0.1 * (step + 1)
        torch.manual_seed(step)
        flat = torch.randn(15)
        noise = [part.view_as(t) for part, t in zip(flat.split([12, 3]), start, strict=True)]
        sampled_step(optimiser, noise, loss, rate)
        torch.manual_seed(step)
        reference.param_groups[0]["lr"] = rate
        with reference.sampled_params(train=True):
            reference.zero_grad()
            loss(copies).backward()
        reference.step()
        for mean, copy in zip(means, copies, strict=True):
            torch.testing.assert_close(mean, copy)
        expected = (50 * (reference.param_groups[0]["hess"] + 0.02)).rsqrt()
        actual = torch.cat([root.detach().flatten() for root in roots]).square()
        torch.testing.assert_close(actual, expected)


def test_it_finds_the_posterior_of_a_linear_regression_with_orthogonal_inputs() -> None:
    """Its precision is n (mean x^2 + d), and its mean is mean(x y) / (mean x^2 + d)."""
    generator = Generator().manual_seed(1)
    inputs = torch.linalg.qr(torch.randn(40, 3, generator=generator)).Q
    inputs = inputs * torch.tensor([2.0, 5.0, 9.0])
    targets = inputs @ torch.tensor([1.0, -2.0, 0.5]) + torch.randn(40, generator=generator)
    mean, root = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    optimiser = IVON([mean], [root], 40.0, 1.0, 0.99, weight_decay=0.1)

    def loss(weights: list[Tensor]) -> Tensor:
        errors = targets - weights[0] @ inputs.T  # (samples, 40)
        return errors.square().mean() / 2

    for step in range(1500):
        noise = torch.randn(64, 3, generator=generator)
        sampled_step(optimiser, [noise], loss, rate=0.1 * (1 - step / 1500))
    precision = inputs.square().mean(dim=0) + 0.1
    torch.testing.assert_close(root.detach() ** -4, 40 * precision, rtol=0.1, atol=0)
    exact = (targets @ inputs) / 40 / precision
    torch.testing.assert_close(mean.detach(), exact, rtol=0.05, atol=0.01)


def optimisation_of(rows: int | None = None, clip_norm: float = 1e9) -> Optimisation:
    network = random_network(method=settings_of("ivon", initial_curvature=2.0, kl_weight=0.5))
    objective = AdapterObjective(network, AdapterTraining(samples=2), torch.ones(3), image_count=50)
    settings = AdapterTraining(epochs=1, micro_batch_rows=rows, clip_norm=clip_norm, warmup_steps=0)
    length = RunLength(16_032, 32, 1)
    optimisation = Optimisation(objective, settings, length, Accelerator(cpu=True), seed=4)
    for _, root in named_roots(optimisation):
        # n is that of all images for each adapter
        expected = (50 * 2 / 0.5 * 2.01) ** -0.25
        torch.testing.assert_close(root, torch.full_like(root, expected))
    optimisation.step(0, IMAGES, LABELS)
    return optimisation


def named_roots(optimisation: Optimisation) -> list[tuple[str, nn.Parameter]]:
    named = optimisation.objective.network.named_parameters()
    return [(name, parameter) for name, parameter in named if name.endswith("_root")]


def tensors_of(optimisation: Optimisation) -> dict[str, Tensor]:
    named = optimisation.objective.network.named_parameters()
    return {name: parameter.detach() for name, parameter in named if parameter.requires_grad}


def test_the_means_and_roots_of_a_network_are_updated_alike_in_micro_batches() -> None:
    whole, parts = tensors_of(optimisation_of()), tensors_of(optimisation_of(rows=8))
    assert sum(name.endswith("_root") for name in whole) == 2 * 2 + 2
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)
    roots = [root for name, root in whole.items() if name.endswith("_root")]
    assert all((root.std() > 0).item() for root in roots)


@pytest.mark.parametrize("clip_norm", [1e-3, 1e9])
def test_clipping_changes_no_curvature(clip_norm: float) -> None:
    clipped, plain = optimisation_of(clip_norm=clip_norm), optimisation_of()
    for (name, root), (_, other) in zip(named_roots(clipped), named_roots(plain), strict=True):
        torch.testing.assert_close(root, other, msg=name)
    optimiser = clipped.optimiser
    assert isinstance(optimiser, IVON)
    norm = torch.stack([mean.grad.norm() for mean in optimiser.means]).norm()
    assert (norm <= 1.001e-3) == (clip_norm == 1e-3)

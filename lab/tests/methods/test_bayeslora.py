"""BayesLoRA: its law of a row, and its divergence against numerical integration."""

import math
from itertools import pairwise

import pytest
import torch
from scipy.integrate import quad

from lab.tests.methods.settings import settings_of
from tests.conftest import random_network


def negative_divergence(alpha: float) -> float:
    """-KL up to a constant: log(alpha) / 2 - E[log|1 + sqrt(alpha) z|] for normal z."""

    def integrand(z: float) -> float:
        return math.log(abs(1 + math.sqrt(alpha) * z)) * math.exp(-z * z / 2)

    zero = -1 / math.sqrt(alpha)
    parts = sorted({-12.0, 12.0, min(max(zero, -12), 12)})
    mean = sum(quad(integrand, a, b, limit=200)[0] for a, b in pairwise(parts))
    return 0.5 * math.log(alpha) - mean / math.sqrt(2 * math.pi)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0, 10.0])
def test_the_divergence_differs_from_the_integral_by_a_constant(alpha: float) -> None:
    network = random_network(method=settings_of("bayeslora", kl_weight=0.5)).double()

    @torch.no_grad()
    def divergence_of_an_element(variance: float) -> float:
        elements = 0
        for block in network.blocks:
            for weights in (block.down, block.up):
                weights.fill_(1.0)
                elements += weights.numel()
            block.log_variance.fill_(math.log(variance))
        return network.divergence().item() / (0.5 * elements)

    divergence = [divergence_of_an_element(value) for value in (alpha, 1e4)]
    integral = negative_divergence(1e4) - negative_divergence(alpha)
    assert divergence[0] - divergence[1] == pytest.approx(integral, abs=0.02)


def test_all_elements_of_a_direction_have_its_deviation() -> None:
    block = random_network(method=settings_of("bayeslora")).blocks[0]
    with torch.no_grad():
        block.log_variance.copy_(torch.tensor([0.0, 2.0, 4.0, 6.0]).expand(4, 2, 4))
    assert torch.allclose(
        (block.down_root**2).squeeze(-1),
        torch.tensor([math.e**k for k in range(4)]).expand(4, 2, 4),
    )

"""The sides of the paper's method."""

import pytest
import torch
from torch import Tensor

from eulerlora.methods.eulerlora import EulerLoRASettings
from eulerlora.nn.method import COEFFICIENTS
from eulerlora.sampling.masks import PROJECTIONS
from eulerlora.settings import Draw
from tests.conftest import random_network

STOCH = Draw(mode="stoch", samples=3, seed=4)


@pytest.mark.parametrize(("sides", "sampled"), [("input", [0, 1, 2]), ("output", [3])])
def test_a_side_is_sampled_with_the_law_of_both_and_the_other_has_ones(
    sides: str, sampled: list[int]
) -> None:
    def drawn(settings: EulerLoRASettings) -> Tensor:
        return random_network(method=settings).draw_rows([STOCH]).blocks[COEFFICIENTS]

    both, one = (
        drawn(EulerLoRASettings()),
        drawn(EulerLoRASettings.model_validate({"sides": sides})),
    )
    others = [index for index in range(len(PROJECTIONS)) if index not in sampled]
    assert torch.equal(one[:, :, sampled], both[:, :, sampled])
    det = random_network().draw_rows([Draw()]).blocks[COEFFICIENTS].repeat_interleave(3, dim=0)
    assert torch.equal(one[:, :, others], det[:, :, others])

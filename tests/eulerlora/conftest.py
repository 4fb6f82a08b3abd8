"""Images and a network that most tests of the method use."""

import pytest
import torch
from torch import Generator, Tensor

from eulerlora.nn.network import AdaptedVisionTransformer
from tests.conftest import MakeNetwork


@pytest.fixture
def images() -> Tensor:
    """(3, 3, 32, 32): random images."""
    return torch.rand(3, 3, 32, 32, generator=Generator().manual_seed(0))


@pytest.fixture
def network(make_network: MakeNetwork) -> AdaptedVisionTransformer:
    """A tiny network with random adapters."""
    return make_network()

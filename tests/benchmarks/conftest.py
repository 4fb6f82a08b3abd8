"""A tiny network whose adapters do much, two images, and the coefficients of their trajectories."""

from dataclasses import dataclass

import pytest
import torch
from torch import Generator, Tensor

from eulerlora.coefficients import draw_trajectories, on_stacked_ranks
from eulerlora.rows import Rows
from eulerlora.vision_transformer import AdaptedVisionTransformer

SAMPLES = 3


@dataclass(frozen=True)
class Question:
    """All that a comparison of logits needs.

    own: (trajectories, n, blocks, 4, rank). coefficients: the same, (rows, blocks, 4, ranks).
    """

    network: AdaptedVisionTransformer
    images: Tensor
    rows: Rows
    own: Tensor
    coefficients: Tensor


@pytest.fixture
def question(make_network) -> Question:
    network, count = make_network(), 2
    generator = Generator().manual_seed(3)
    images = torch.rand(count, 3, 32, 32, generator=generator)
    drawn = [draw_trajectories(2 * SAMPLES, 2, network.settings, generator) for _ in range(count)]
    return Question(
        network=network,
        images=images,
        rows=Rows.of([SAMPLES] * count, 2),
        own=torch.stack(drawn, dim=1),
        coefficients=torch.cat([on_stacked_ranks(each, 2) for each in drawn]),
    )

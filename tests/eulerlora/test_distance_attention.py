"""Self-attention by distance against a loop over its definition."""

import math

import pytest
import torch
from torch import Tensor

from eulerlora.distance_attention import DistanceAttention, attend
from eulerlora.row_draws import RowDraws
from eulerlora.rows import Rows
from tests.conftest import TINY_BACKBONE, random_backbone, random_network

BY_DISTANCE = TINY_BACKBONE.model_copy(update={"attention": "l2"})
GENERATOR = torch.Generator().manual_seed(0)


def test_a_token_attends_to_others_by_the_distance_of_query_and_key() -> None:
    query, key, value = torch.randn(3, 2, 2, 5, 4, generator=GENERATOR).unbind(0)
    expected = torch.zeros_like(value)
    for row in range(2):
        for head in range(2):
            for i in range(5):
                distances = [(query[row, head, i] - k).square().sum() for k in key[row, head]]
                weights = torch.stack([math.e ** (-d / math.sqrt(4)) for d in distances])
                expected[row, head, i] = (weights / weights.sum()) @ value[row, head]
    attention = DistanceAttention(8, 2, batch_first=True)
    torch.testing.assert_close(attend(attention, query, key, value), expected)


def test_equal_queries_and_keys_far_apart_attend_to_themselves_only() -> None:
    tokens = 100 * torch.eye(4)[None, None]
    values = torch.randn(1, 1, 4, 4, generator=GENERATOR)
    attention = DistanceAttention(4, 1, batch_first=True)
    torch.testing.assert_close(attend(attention, tokens, tokens, values), values)


def test_bfloat16_products_lose_no_digits_of_the_distances() -> None:
    offset = 300.0  # the squares of the norms are much larger than the distances
    tokens = offset + torch.randn(1, 1, 6, 4, generator=GENERATOR).bfloat16().float()
    values = torch.randn(1, 1, 6, 4, generator=GENERATOR)
    attention = DistanceAttention(4, 1, batch_first=True)
    expected = attend(attention, tokens, tokens, values)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(attend(attention, tokens, tokens, values), expected)


def test_a_network_without_coefficients_is_its_backbone() -> None:
    backbone = random_backbone(BY_DISTANCE)
    network = random_network(backbone=backbone)
    images, rows = torch.rand(2, 3, 32, 32, generator=GENERATOR), Rows.of([1, 1], adapters=2)
    coefficients = torch.zeros(len(rows), network.depth, 4, 8)
    logits = network(images, rows, RowDraws.of_coefficients(coefficients))
    torch.testing.assert_close(logits, head_outputs(network, backbone(images), rows))


@pytest.mark.parametrize("seed", [0, 1])
def test_distance_and_dot_product_differ(seed: int) -> None:
    images = torch.rand(1, 3, 32, 32, generator=GENERATOR)
    plain, by_distance = random_backbone(seed=seed), random_backbone(BY_DISTANCE, seed)
    by_distance.load_state_dict(plain.state_dict())
    assert not torch.allclose(plain(images), by_distance(images), atol=1e-3)


def head_outputs(network: torch.nn.Module, features: Tensor, rows: Rows) -> Tensor:
    return network.heads(features[rows.image], rows.adapter)

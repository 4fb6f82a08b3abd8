"""Self-attention by distance against a loop, and by dot product against torch's module."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eulerlora.nn.attention import DistanceAttention, SelfAttention, attend
from eulerlora.nn.rows import RowDraws, Rows
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


def test_dot_products_are_those_of_torch() -> None:
    ours, torchs = (
        SelfAttention(8, 2, batch_first=True),
        nn.MultiheadAttention(8, 2, batch_first=True),
    )
    torchs.load_state_dict(ours.state_dict())
    tokens = torch.randn(3, 5, 8, generator=GENERATOR)
    actual, _ = ours(tokens, tokens, tokens, need_weights=False)
    expected, _ = torchs(tokens, tokens, tokens, need_weights=False)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("with_added", [False, True])
def test_gradients_of_bfloat16_on_a_cpu_are_computed_in_float32(with_added: bool) -> None:
    attention = SelfAttention(8, 2, batch_first=True)
    heads = torch.randn(3, 2, 2, 5, 4, generator=GENERATOR).bfloat16()
    added = torch.randn(2, 2, 5, 5, generator=GENERATOR) if with_added else None
    slow, exact = heads.clone().requires_grad_(), heads.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        actual = attend(attention, *slow.unbind(0), added)
    expected = attend(attention, *exact.unbind(0), added)
    assert actual.dtype == torch.bfloat16
    assert torch.equal(actual, expected.bfloat16())
    weights = torch.randn(actual.shape, generator=GENERATOR).bfloat16()
    (actual * weights).sum().backward()
    (expected * weights.float()).sum().backward()
    assert slow.grad is not None
    assert exact.grad is not None
    assert torch.equal(slow.grad, exact.grad.bfloat16())


def test_predictions_in_bfloat16_use_its_kernel() -> None:
    attention = SelfAttention(8, 2, batch_first=True)
    heads = torch.randn(3, 2, 2, 5, 4, generator=GENERATOR).bfloat16().unbind(0)
    expected = F.scaled_dot_product_attention(*heads)
    assert torch.equal(attend(attention, *heads), expected)
    with torch.no_grad():
        assert torch.equal(attend(attention, *(h.requires_grad_() for h in heads)), expected)


def head_outputs(network: torch.nn.Module, features: Tensor, rows: Rows) -> Tensor:
    return network.heads(features[rows.image], rows.adapter)

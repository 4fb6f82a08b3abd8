"""DropKey against torch's masked attention, and the law of its masks."""

import math

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.methods.registry import method_type
from eulerlora.nn.attention import DistanceAttention, attend
from eulerlora.nn.method import BlockRows, NetworkShape
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import BackboneSettings, Draw
from eulerlora_contract.sampling import Sampler
from lab.tests.methods.settings import settings_of
from tests.conftest import predict_rows, random_network

STOCH = Draw(mode="stoch", samples=2, seed=4)
STANDARD_ERRORS = 5


@torch.no_grad()
def merged_attention(
    network: AdaptedVisionTransformer, index: int, adapter: int
) -> nn.MultiheadAttention:
    """torch's attention of a block with the weights W0 + B A of an adapter."""
    frozen = network.backbone.encoder.blocks()[index].self_attention
    block = network.blocks[index]
    updates = block.up[:, adapter].mT @ block.down[:, adapter]  # (4, width, width)
    merged = nn.MultiheadAttention(frozen.embed_dim, frozen.num_heads, batch_first=True)
    merged.load_state_dict(frozen.state_dict())
    merged.in_proj_weight.add_(updates[:3].flatten(0, 1))
    merged.out_proj.weight.add_(updates[3])
    return merged.eval()


@torch.no_grad()
def naive_log_probabilities(
    network: AdaptedVisionTransformer, image: Tensor, adapter: int, masks: Tensor
) -> Tensor:
    """The answer of one row. masks: (blocks, heads, tokens, tokens), True if dropped."""
    backbone = network.backbone
    tokens = backbone.tokens(backbone.patches(image))
    for index, layer in enumerate(backbone.encoder.blocks()):
        inputs = layer.ln_1(tokens)
        attention = merged_attention(network, index, adapter)
        attended, _ = attention(inputs, inputs, inputs, attn_mask=masks[index])
        tokens = layer.after_attention(tokens, attended)
    head = network.heads.weight[adapter], network.heads.bias[adapter]
    return F.linear(backbone.pooled(tokens)[0], *head).double().log_softmax(dim=-1)


@pytest.mark.parametrize("rate", [0.2, 0.6])
def test_rows_equal_torchs_attention_with_masked_keys(rate: float) -> None:
    network = random_network(method=settings_of("dropkey", rate=rate))
    image = torch.rand(1, 3, 32, 32, generator=Generator().manual_seed(1))
    (actual,) = predict_rows(network, image, [STOCH])
    dropped = network.draw_rows([STOCH]).blocks["dropped_keys"].bool()
    for row in range(4):
        expected = naive_log_probabilities(network, image, row // 2, dropped[row])
        torch.testing.assert_close(actual[row], expected, rtol=0, atol=1e-5)
    (det,) = predict_rows(network, image, [Draw()])
    for adapter in range(2):
        nothing = torch.zeros_like(dropped[0])
        expected = naive_log_probabilities(network, image, adapter, nothing)
        torch.testing.assert_close(det[adapter], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("sampler", ["independent", "balanced"])
def test_every_key_is_dropped_at_the_rate_and_independently_of_others(sampler: Sampler) -> None:
    backbone = BackboneSettings(
        image_size=16, patch_size=8, layers=16, heads=16, width=16, mlp_width=8
    )
    shape = NetworkShape(AdapterSettings(adapters=1, rank=1, min_rank=1), backbone, classes=2)
    settings = settings_of("dropkey", rate=0.2)
    method = method_type(settings)(settings, shape)
    draw = Draw(mode="stoch", samples=2, seed=1, sampler=sampler)
    masks = method.draw(draw).blocks["dropped_keys"]
    assert masks.shape == (2, 16, 16, 5, 5)
    assert masks.unique().tolist() == [0, 1]
    for sample in masks:
        keys = sample.flatten(0, 2)  # (1280, keys)
        error = math.sqrt(0.2 * 0.8 / len(keys))
        assert ((keys.mean(dim=0) - 0.2).abs() < STANDARD_ERRORS * error).all()
        correlation = torch.corrcoef(keys.T).fill_diagonal_(0).abs()
        assert correlation.max() < STANDARD_ERRORS / math.sqrt(len(keys))
    if sampler == "balanced":
        assert (masks[0] * masks[1]).sum() == 0  # z and -z are not both below a low quantile


def test_a_query_without_any_key_attends_to_all_equally() -> None:
    network = random_network(method=settings_of("dropkey"))
    inputs = torch.rand(1, 17, 16, generator=Generator().manual_seed(2))
    frozen = network.backbone.encoder.blocks()[0].self_attention
    draws = dict(network.draw_rows([Draw(mode="stoch")]).block(0))
    draws["dropped_keys"] = torch.ones_like(draws["dropped_keys"])
    first = torch.tensor([0])
    rows = BlockRows({name: values[:1] for name, values in draws.items()}, first, first)
    attended = network.blocks[0].attention(inputs, frozen, rows)
    assert attended.isfinite().all()
    torch.testing.assert_close(attended, attended[:, :1].expand_as(attended))


def test_added_logits_join_those_of_attention_by_distance() -> None:
    query, key, value = torch.randn(3, 1, 2, 5, 4, generator=Generator().manual_seed(3))
    added = torch.randn(1, 2, 5, 5, generator=Generator().manual_seed(4))
    squared = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(dim=-1)
    expected = (added - squared / math.sqrt(4)).softmax(dim=-1) @ value
    actual = attend(DistanceAttention(8, 2, batch_first=True), query, key, value, added)
    torch.testing.assert_close(actual, expected)

"""Ensembles without adapters against networks with merged weights, and their shared rows."""

import copy

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.methods.registry import build_network
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.method import MethodSettings
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import Draw
from eulerlora_contract.errors import SettingsError
from lab.tests.methods.settings import settings_of
from tests.conftest import predict_rows, random_backbone, random_network

MEMBERS = AdapterSettings(adapters=3, rank=1, min_rank=1)


@pytest.fixture
def images() -> Tensor:
    return torch.rand(2, 3, 32, 32, generator=Generator().manual_seed(1))


@torch.no_grad()
def merged(network: AdaptedVisionTransformer, member: int) -> VisionTransformer:
    """The backbone with the weights W o (s r') of a member."""
    backbone = copy.deepcopy(network.backbone)
    for layer, block in zip(backbone.encoder.blocks(), network.blocks, strict=True):
        if not hasattr(block, "input_factors"):
            continue
        r, s = block.input_factors[:, member], block.output_factors[:, member]  # (4, width)
        factors = s.unsqueeze(-1) * r.unsqueeze(-2)  # (4, width, width)
        layer.self_attention.in_proj_weight.mul_(factors[:3].flatten(0, 1))
        layer.self_attention.out_proj.weight.mul_(factors[3])
    return backbone


@torch.no_grad()
def answer(
    network: AdaptedVisionTransformer, backbone: VisionTransformer, member: int
) -> nn.Module:
    weight, bias = network.heads.weight[member], network.heads.bias[member]
    return lambda images: F.linear(backbone(images), weight, bias).double().log_softmax(dim=-1)


@pytest.mark.parametrize("blocks", [1, 2])
def test_members_of_batch_ensemble_have_rank_one_factors_of_the_frozen_weights(
    blocks: int, images: Tensor
) -> None:
    network = random_network(MEMBERS, method=settings_of("batch-ensemble", blocks=blocks))
    kinds = [bool(list(block.parameters())) for block in network.blocks]
    assert kinds == [False] * (2 - blocks) + [True] * blocks
    actual = torch.stack(predict_rows(network, images, [Draw(), Draw()]))
    for member in range(3):
        with torch.no_grad():
            expected = answer(network, merged(network, member), member)(images)
        torch.testing.assert_close(actual[:, member], expected, rtol=0, atol=1e-5)


def test_initial_factors_are_normal_around_one() -> None:
    method = settings_of("batch-ensemble", blocks=2, factor_deviation=0.1)
    settings = AdapterSettings(adapters=50, rank=1, min_rank=1)
    network = build_network(random_backbone(), settings, 3, method=method)
    network.initialise(Generator().manual_seed(0))
    for block in network.blocks:
        for factors in block.parameters():
            assert abs(factors.mean() - 1) < 5 * 0.1 / factors.numel() ** 0.5
            assert factors.std().item() == pytest.approx(0.1, rel=5 / (2 * factors.numel()) ** 0.5)


def test_batch_ensemble_needs_at_most_the_blocks_of_the_backbone() -> None:
    with pytest.raises(SettingsError, match=r"method\.blocks"):
        random_network(MEMBERS, method=settings_of("batch-ensemble", blocks=3))


def test_members_of_a_last_layer_ensemble_are_heads_of_the_backbone(images: Tensor) -> None:
    network = random_network(MEMBERS, method=settings_of("last-layer-ensemble"))
    names = [name for name, _ in network.adapter_parameters()]
    assert names == ["heads.weight", "heads.bias"]
    actual = torch.stack(predict_rows(network, images, [Draw(), Draw()]))
    for member in range(3):
        with torch.no_grad():
            expected = answer(network, network.backbone, member)(images)
        torch.testing.assert_close(actual[:, member], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "method", [settings_of("batch-ensemble", blocks=1), settings_of("last-layer-ensemble")]
)
def test_initial_members_differ(method: MethodSettings, images: Tensor) -> None:
    network = build_network(random_backbone(), MEMBERS, 3, method=method)
    network.initialise(Generator().manual_seed(0))
    (members,) = predict_rows(network, images[:1], [Draw()])
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert not torch.allclose(members[first], members[second], atol=1e-3)

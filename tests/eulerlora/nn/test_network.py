"""The network against torchvision, on a tiny backbone and ViT-B/32; rows against loops."""

import copy
import math

import pytest
import torch
from scipy import stats
from torch import Generator, Tensor, nn
from torchvision import models

from eulerlora.methods.registry import build_network
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.method import COEFFICIENTS, AdapterHeads, RowDraws
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import BackboneSettings, Draw, Preprocessing
from tests.conftest import TINY_BACKBONE

DET = Draw()


@torch.inference_mode()
def answer(network: AdaptedVisionTransformer, images: Tensor, *draws: Draw) -> tuple[Tensor, ...]:
    """Logits (trajectories, classes) of each image, for its draw or a common draw."""
    each = draws if len(draws) == len(images) else draws * len(images)
    rows = Rows.of([draw.samples for draw in each], network.settings.adapters)
    return network(images, rows, network.draw_rows(each)).split(rows.counts)


def torchvisions(backbone: VisionTransformer) -> models.VisionTransformer:
    """Torchvision's module with the same weights, without a head."""
    shape = backbone.settings
    model = models.VisionTransformer(
        shape.image_size, shape.patch_size, shape.layers, shape.heads, shape.width, shape.mlp_width
    )
    model.heads = nn.Sequential()
    model.load_state_dict(backbone.state_dict())
    return model.eval()


@torch.inference_mode()
def frozen_with_head(network: AdaptedVisionTransformer, images: Tensor) -> Tensor:
    """Logits (n, adapters, classes) of torchvision with each head."""
    features = torchvisions(network.backbone)(images)
    return torch.einsum("nd,acd->nac", features, network.heads.weight) + network.heads.bias


def test_the_backbone_is_torchvisions_network(make_backbone, images: Tensor) -> None:
    backbone = make_backbone()
    with torch.inference_mode():
        actual, expected = backbone(images), torchvisions(backbone)(images)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


OPTIONS: dict[str, dict[str, object]] = {
    "torchvision": {},
    "convolutional stem": {"stem": "convolution"},
    "CLIP": {"pre_norm": True, "activation": "quick-gelu", "norm_epsilon": 1e-5},
    "DINOv2": {"layer_scale": True},
    "DINOv2 with registers": {"layer_scale": True, "registers": 3},
    "DINOv3": {"layer_scale": True, "registers": 3, "positions": "rotary"},
    "gated MLP": {"activation": "swiglu"},
    "mean over patches": {"pooling": "mean", "registers": 1},
    "mean, then norm": {"pooling": "mean", "final_norm": "pooled", "activation": "gelu-tanh"},
    "without final norm": {"final_norm": "none"},
    "one block": {"layers": 1, "registers": 2},
    "attention by distance": {"attention": "l2"},
}


@torch.inference_mode()
def naive_logits(
    network: AdaptedVisionTransformer, image: Tensor, coefficients: Tensor, adapter: int
) -> Tensor:
    """The logits of one row from a pass of the backbone with W0 + B diag(c) A.

    coefficients: (blocks, 4, rank).
    """
    merged = copy.deepcopy(network.backbone)
    for layer, block, values in zip(
        merged.encoder.layers, network.blocks, coefficients, strict=True
    ):
        down, up = block.down[:, adapter], block.up[:, adapter]  # (4, rank, width)
        updates = torch.einsum("pkj,pk,pki->pji", up, values, down)
        layer.self_attention.in_proj_weight += updates[:3].flatten(0, 1)
        layer.self_attention.out_proj.weight += updates[3]
    features = merged(image[None])[0]
    return network.heads.weight[adapter] @ features + network.heads.bias[adapter]


@torch.inference_mode()
@pytest.mark.parametrize(
    "adapter", [[1, 1, 1, 1], [1, 0, 0, 1, 1, 1], [0, 1, 1]], ids=["one", "two to one", "coprime"]
)
def test_adapters_may_have_different_numbers_of_rows(
    network: AdaptedVisionTransformer, images: Tensor, adapter: list[int]
) -> None:
    coefficients = torch.rand(
        len(adapter), network.depth, 4, network.settings.rank, generator=Generator().manual_seed(0)
    )
    rows = Rows.grouped(torch.zeros(len(adapter), dtype=torch.int64), torch.tensor(adapter))
    actual = network(images[:1], rows, RowDraws.of_coefficients(coefficients))
    for logits, index, own in zip(actual, adapter, coefficients, strict=True):
        expected = naive_logits(network, images[0], own, index)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_images_are_normalised_before_the_backbone(make_backbone, images: Tensor) -> None:
    backbone, adapters = make_backbone(), AdapterSettings(adapters=1, rank=2, min_rank=1)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    normalised = build_network(backbone, adapters, 3, Preprocessing(size=32, mean=mean, std=std))
    normalised.initialise(Generator().manual_seed(0))
    plain = build_network(backbone, adapters, 3)
    plain.load_state_dict(normalised.state_dict())
    shifted = (images - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    expected, actual = answer(plain, shifted, DET), answer(normalised, images, DET)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    "draw", [DET, Draw(mode="stoch", seed=1), Draw(mode="stoch", samples=3, seed=2)], ids=str
)
def test_an_initialised_network_equals_the_frozen_backbone_in_every_mode(
    network: AdaptedVisionTransformer, images: Tensor, draw: Draw
) -> None:
    network.initialise(Generator().manual_seed(0))
    expected = frozen_with_head(network, images).repeat_interleave(draw.samples, dim=1)
    actual = torch.stack(answer(network, images, draw))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_row_equals_a_pass_of_the_backbone_with_merged_weights(
    make_backbone, make_network, images: Tensor, options: dict[str, object]
) -> None:
    backbone = make_backbone(TINY_BACKBONE.model_copy(update={"layers": 3} | options))
    network = make_network(backbone=backbone)
    draws = [
        Draw(mode="stoch", samples=samples, seed=samples, sampler=sampler)
        for samples, sampler in ((2, "balanced"), (1, "independent"), (3, "independent"))
    ]
    rows = answer(network, images, *draws)
    for image, draw, logits in zip(images, draws, rows, strict=True):
        coefficients = network.draw_rows([draw]).blocks[COEFFICIENTS]
        for row, actual in enumerate(logits):
            expected = naive_logits(network, image, coefficients[row], adapter=row // draw.samples)
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_row_has_gradients_only_for_its_adapter_and_head(
    network: AdaptedVisionTransformer, images: Tensor
) -> None:
    rows = Rows.of([1] * len(images), 2)
    draws = network.draw_rows([DET] * len(images))
    logits = network(images, rows, draws)
    logits[rows.adapter == 1].square().sum().backward()
    for block in network.blocks:
        for parameter in (block.down, block.up):
            assert (parameter.grad[:, 0] == 0).all()
            assert (parameter.grad[:, 1].flatten(1).abs().amax(dim=-1) > 0).all()
    for parameter in network.heads.parameters():
        assert (parameter.grad[0] == 0).all()
        assert (parameter.grad[1] != 0).any()


def test_the_backbones_dropout_stays_off_in_training(
    make_backbone, make_network, images: Tensor
) -> None:
    backbone = make_backbone()
    for block in backbone.encoder.layers:
        block.dropout = nn.Dropout(0.5)
    network = make_network(backbone=backbone).train()
    assert network.training
    assert not any(module.training for module in network.backbone.modules())
    torch.testing.assert_close(answer(network, images, DET), answer(network, images, DET))


@pytest.mark.parametrize(
    ("adapters", "classes", "expected"),
    [(2, 10, 2_964_500), (2, 100, 3_102_920), (2, 7, 2_959_886)],
    ids=["CIFAR-10", "CIFAR-100", "HAM10000"],
)
def test_the_networks_of_the_paper_have_the_stated_number_of_trainable_parameters(
    adapters: int, classes: int, expected: int
) -> None:
    with torch.device("meta"):
        backbone = VisionTransformer(BackboneSettings())
        network = build_network(backbone, AdapterSettings(adapters=adapters), classes)
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == expected


def test_heads_are_initialised_like_torchs_linear() -> None:
    width, classes = 64, 50
    heads, linear = AdapterHeads(width, classes, 4), nn.Linear(width, classes)
    heads.initialise(Generator().manual_seed(0))
    bound = 1 / math.sqrt(width)
    for actual, reference in ((heads.weight, linear.weight), (heads.bias, linear.bias)):
        values = actual.detach().flatten().numpy()
        assert abs(values).max() <= bound
        assert stats.kstest(values, stats.uniform(-bound, 2 * bound).cdf).pvalue > 1e-3
        assert reference.abs().max() <= bound  # fails if the rule of torch changes
    assert len({tuple(head.flatten().tolist()) for head in heads.weight}) == 4


def test_initialisation_is_a_function_of_the_generator_and_differs_over_blocks(
    make_network,
) -> None:
    first, second, third = make_network(seed=0), make_network(seed=0), make_network(seed=0)
    first.initialise(Generator().manual_seed(3))
    torch.manual_seed(99)
    second.initialise(Generator().manual_seed(3))
    third.initialise(Generator().manual_seed(4))
    for (_, a), (_, b) in zip(first.adapter_parameters(), second.adapter_parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.blocks[0].down, third.blocks[0].down)
    assert not torch.equal(first.blocks[0].down, first.blocks[1].down)


def test_parts_hold_whole_images_and_at_most_the_allowed_rows_or_one_image() -> None:
    rows = Rows.of([1, 3, 1, 5, 1], adapters=2)
    parts = list(rows.split(8))
    assert [part.renumbered.counts for part in parts] == [(2, 6), (2,), (10,), (2,)]
    assert [part.images for part in parts] == [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 5)]
    for part in parts:
        assert torch.equal(part.renumbered.image + part.images.start, rows.image[part.rows])
        assert torch.equal(part.renumbered.adapter, rows.adapter[part.rows])
        assert len(part.renumbered) == sum(part.renumbered.counts)
    assert [part.rows.stop for part in parts] == [8, 10, 20, 22]

"""TFB: the rotation, the noise in the space of weights, and the search."""

from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor, nn

from eulerlora.nn.method import MethodSettings
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.settings import Draw
from lab.tests.methods.settings import settings_of
from tests.conftest import predict_rows, random_network

TFB = settings_of("tfb", tolerance=0.1)

Fit = Callable[[AdaptedVisionTransformer], AdaptedVisionTransformer]


@pytest.fixture
def anchors() -> Tensor:
    return torch.rand(20, 3, 32, 32, generator=Generator().manual_seed(0))


@pytest.fixture
def fitted(
    anchors: Tensor,
    network_like: Callable[..., AdaptedVisionTransformer],
    after_training: Callable[..., MethodSettings],
) -> Fit:
    """Fits the noise to the adapters of a network."""

    def fit(source: AdaptedVisionTransformer) -> AdaptedVisionTransformer:
        network = network_like(source, TFB)
        after_training(network, images={"train": (anchors, torch.zeros(len(anchors)))})
        return network

    return fit


def test_the_rotation_changes_no_product_and_gives_orthogonal_rows_of_b(
    anchors: Tensor, fitted: Fit
) -> None:
    source = random_network()
    network = fitted(source)
    for block, before in zip(network.blocks, source.blocks, strict=True):
        torch.testing.assert_close(block.up.mT @ block.down, before.up.mT @ before.down)
        singular = torch.linalg.svdvals(before.up)
        torch.testing.assert_close(block.up @ block.up.mT, torch.diag_embed(singular**2))
    (expected,), (actual,) = (predict_rows(n, anchors[:1], [Draw()]) for n in (source, network))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_the_noise_on_weights_has_one_size_in_the_space_of_b(fitted: Fit) -> None:
    """B' (noise / D) = U noise with orthonormal U, so that its Gram matrix is that of the noise."""
    network = fitted(random_network())
    variance = network.method.settings.deviation**2
    for block in network.blocks:
        noise = torch.randn(block.down.shape, generator=Generator().manual_seed(1))
        change = block.up.mT @ (block.down_root.square() * noise)
        torch.testing.assert_close(
            change.mT @ change / variance, noise.mT @ noise, rtol=1e-3, atol=1e-2
        )


def test_directions_without_effect_get_no_noise(fitted: Fit) -> None:
    source = random_network()
    with torch.no_grad():
        for block in source.blocks:
            block.up[..., 1:, :] = block.up[..., :1, :]  # B has rank 1
    network = fitted(source)
    for block in network.blocks:
        assert block.down_root.isfinite().all()
        assert (block.down_root[..., :1, :] > 0).all()
        assert (block.down_root[..., 1:, :] == 0).all()


def deviation_of(network: AdaptedVisionTransformer) -> float:
    """The standard deviation of the noise U E that the scales of a network give."""
    block = network.blocks[0]
    return (block.down_root[0, 0, 0, 0].square() * block.up[0, 0, 0].norm()).item()


@pytest.fixture
def search(
    anchors: Tensor,
    network_like: Callable[..., AdaptedVisionTransformer],
    after_training: Callable[..., MethodSettings],
) -> Callable[[float], float]:
    """Fits a network whose labels change with noise above a limit; returns the deviation."""

    def fit(limit: float) -> float:
        network = network_like(random_network(), TFB)

        def answer(_: nn.Module, __: object, logits: Tensor) -> Tensor:
            answers = torch.zeros_like(logits)
            answers[:, int(deviation_of(network) > limit)] = 1
            return answers

        network.heads.register_forward_hook(answer)
        images = {"train": (anchors[:1], torch.zeros(1))}
        return after_training(network, images=images).deviation

    return fit


@pytest.mark.parametrize("limit", [3e-7, 2e-3, 0.7, 300.0])
def test_the_search_finds_the_largest_accepted_noise(
    search: Callable[[float], float], limit: float
) -> None:
    found = search(limit)
    assert found <= limit * (1 + 1e-5) < 1.02 * found


def test_the_search_gives_no_noise_if_none_is_accepted(search: Callable[[float], float]) -> None:
    assert search(1e-12) == 0.0


def test_the_fit_keeps_the_labels_of_most_anchors_and_twice_the_noise_does_not(
    anchors: Tensor, fitted: Fit
) -> None:
    source = random_network()
    network = fitted(source)
    settings = network.method.settings

    def labels_of(network: AdaptedVisionTransformer, **draw: object) -> Tensor:
        draws = [Draw(**draw, seed=seed) if draw else Draw() for seed in range(len(anchors))]
        return torch.stack(predict_rows(network, anchors, draws)).exp().mean(dim=1).argmax(dim=-1)

    labels = labels_of(source)

    def changed() -> float:
        sampled = labels_of(network, mode="stoch", samples=4)
        return (sampled != labels).double().mean().item()

    assert settings == TFB.model_copy(update={"deviation": settings.deviation, "anchors": 20})
    assert settings.deviation > 0
    assert changed() <= 0.1
    for block in network.blocks:
        with torch.no_grad():
            block.down_root.mul_(2.0**0.5)
    assert changed() > 0.1

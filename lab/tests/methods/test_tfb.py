"""TFB: the rotation, the noise in the space of weights, and the search."""

import pytest
import torch
from torch import Generator, Tensor

from eulerlora.settings import Draw
from eulerlora_lab.methods.posteriors import (
    TFBSettings,
    largest_accepted,
    predicted_probabilities,
    rotate,
    set_deviation,
)
from lab.tests.methods.conftest import GivenRun, network_like
from tests.conftest import predict_rows, random_network

TFB = TFBSettings(tolerance=0.1)


@pytest.fixture
def anchors() -> Tensor:
    return torch.rand(20, 3, 32, 32, generator=Generator().manual_seed(0))


def test_the_rotation_changes_no_product_and_gives_orthogonal_rows_of_b(anchors: Tensor) -> None:
    source = random_network()
    network = network_like(source, TFB)
    values = rotate(network)
    for block, before, singular in zip(network.blocks, source.blocks, values, strict=True):
        torch.testing.assert_close(block.up.mT @ block.down, before.up.mT @ before.down)
        torch.testing.assert_close(block.up @ block.up.mT, torch.diag_embed(singular**2))
    (expected,), (actual,) = (predict_rows(n, anchors[:1], [Draw()]) for n in (source, network))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_the_noise_on_weights_has_one_size_in_the_space_of_b() -> None:
    """B' (noise / D) = U noise with orthonormal U, so that its Gram matrix is that of the noise."""
    network = network_like(random_network(), TFB)
    values = rotate(network)
    set_deviation(network, values, 0.3)
    for block in network.blocks:
        noise = torch.randn(block.down.shape, generator=Generator().manual_seed(1))
        change = block.up.mT @ (block.down_root.square() * noise)
        torch.testing.assert_close(
            change.mT @ change, 0.09 * noise.mT @ noise, rtol=1e-3, atol=1e-3
        )


def test_directions_without_effect_get_no_noise() -> None:
    source = random_network()
    with torch.no_grad():
        for block in source.blocks:
            block.up[..., 1:, :] = 0  # B has rank 1
    network = network_like(source, TFB)
    set_deviation(network, rotate(network), 1.0)
    for block in network.blocks:
        assert block.down_root.isfinite().all()
        assert (block.down_root[..., :1, :] > 0).all()
        assert (block.down_root[..., 1:, :] == 0).all()


@pytest.mark.parametrize("limit", [3e-7, 2e-3, 0.7, 300.0])
def test_the_search_finds_the_largest_accepted_number(limit: float) -> None:
    found = largest_accepted(lambda value: value <= limit)
    assert found <= limit < 1.02 * found


def test_the_search_gives_zero_if_nothing_is_accepted() -> None:
    assert largest_accepted(lambda _: False) == 0.0


def test_the_fit_keeps_the_labels_of_most_anchors_and_twice_the_noise_does_not(
    anchors: Tensor,
) -> None:
    source = random_network()
    network = network_like(source, TFB)
    labels = torch.zeros(len(anchors), dtype=torch.long)
    network.method.after_training(network, GivenRun({"train": (anchors, labels)}))
    settings = network.method.settings
    labels = predicted_probabilities(source, anchors, samples=None).argmax(dim=-1)

    def changed() -> float:
        return (
            (predicted_probabilities(network, anchors).argmax(-1) != labels).double().mean().item()
        )

    assert settings == TFBSettings(deviation=settings.deviation, tolerance=0.1, anchors=20)
    assert settings.deviation > 0
    assert changed() <= 0.1
    for block in network.blocks:
        with torch.no_grad():
            block.down_root.mul_(2.0**0.5)
    assert changed() > 0.1

"""Colour constancy of images and in the network."""

from pathlib import Path

import torch

from eulerlora.checkpoint.files import load_checkpoint, save_checkpoint
from eulerlora.images.colour import colour_constant, shades_of_gray
from eulerlora.methods.registry import build_network
from eulerlora.nn.rows import RowDraws, Rows
from eulerlora.settings import Preprocessing
from tests.conftest import TINY_ADAPTERS, config_of, random_network

IMAGES = 0.2 + 0.4 * torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
GRAY = Preprocessing(size=32, colour_constancy="shades-of-gray")
GAINS = torch.tensor([1.4, 1.0, 0.7])[:, None, None]


def test_the_colour_of_the_light_does_not_change_the_result_up_to_brightness() -> None:
    plain, lit = shades_of_gray(IMAGES), shades_of_gray(IMAGES * GAINS)
    ratio = lit / plain
    torch.testing.assert_close(ratio, ratio.mean(dim=(-3, -2, -1), keepdim=True).expand_as(ratio))


def test_the_light_of_the_result_is_gray() -> None:
    light = shades_of_gray(IMAGES * GAINS).pow(6).mean(dim=(-2, -1)).pow(1 / 6)
    torch.testing.assert_close(light, light.mean(dim=-1, keepdim=True).expand_as(light))


def test_a_gray_image_and_a_black_one_do_not_change() -> None:
    gray = IMAGES[:, :1].expand(-1, 3, -1, -1)
    torch.testing.assert_close(shades_of_gray(gray), gray)
    assert torch.equal(shades_of_gray(torch.zeros(3, 8, 8)), torch.zeros(3, 8, 8))


def test_a_saturated_result_is_clipped_to_the_unit_range() -> None:
    blue = torch.stack([torch.full((8, 8), level) for level in (0.01, 0.01, 1.0)])
    blue[:, 0, 0] = 1.0
    result = shades_of_gray(blue)
    assert result.min() >= 0
    assert result.max() == 1


def test_the_network_applies_the_method_first() -> None:
    plain = random_network()
    network = build_network(plain.backbone, TINY_ADAPTERS, 3, GRAY)
    network.load_state_dict(plain.state_dict())
    rows = Rows.of([1] * len(IMAGES), TINY_ADAPTERS.adapters)
    ranks = TINY_ADAPTERS.adapters * TINY_ADAPTERS.rank
    draws = RowDraws.of_coefficients(torch.ones(len(rows), plain.depth, 4, ranks))
    expected = plain(colour_constant(IMAGES, "shades-of-gray"), rows, draws)
    assert torch.equal(network(IMAGES, rows, draws), expected)
    assert not torch.allclose(plain(IMAGES, rows, draws), expected)


def test_a_checkpoint_keeps_the_method(tmp_path: Path) -> None:
    network = random_network()
    config = config_of(network, preprocessing=GRAY)
    save_checkpoint(tmp_path / "c", network, config, "card")
    assert (
        load_checkpoint(tmp_path / "c").network.preprocessing.colour_constancy == "shades-of-gray"
    )

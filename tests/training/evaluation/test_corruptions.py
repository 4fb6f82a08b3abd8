"""What is done to pixels is what the names say, each time the same."""

import re

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from training.data.datasets import LabelledImage
from training.evaluation.corruptions import CORRUPTIONS, Corrupted, Corruption


@pytest.fixture
def pixels() -> Tensor:
    """(3, 60, 80) uint8, smooth and in the middle of the range."""
    steps = torch.linspace(60, 190, 80).expand(3, 60, 80)
    return steps.to(torch.uint8)


def named(kind: str) -> list[tuple[float, Corruption]]:
    """The corruptions of a kind, with the number in their name."""
    found = []
    for each in CORRUPTIONS:
        if kind in each.name:
            number = re.search(r"[\d.]+", each.name)
            assert number is not None
            found.append((float(number[0]), each))
    assert len(found) >= 2
    return found


def test_each_is_the_same_for_the_same_picture_and_leaves_it_as_it_was(pixels: Tensor) -> None:
    before = pixels.clone()
    for each in CORRUPTIONS:
        changed = each.of(pixels)
        torch.rand(3)
        assert torch.equal(changed, each.of(pixels))
        assert torch.equal(pixels, before)
        assert not torch.equal(changed, pixels)
        assert (changed.dtype, changed.shape) == (pixels.dtype, pixels.shape)
    assert len({each.name for each in CORRUPTIONS}) == len(CORRUPTIONS) == 8


def test_noise_has_its_sigma_and_differs_between_pictures(pixels: Tensor) -> None:
    other = pixels.flip(-1)
    for percent, each in named("noise"):
        noise = each.of(pixels).float() - pixels
        assert float(noise.std()) == pytest.approx(255 * percent / 100, rel=0.05)
        assert abs(float(noise.mean())) < 2
        assert not torch.allclose(noise, each.of(other).float() - other)


def test_brightness_is_a_factor(pixels: Tensor) -> None:
    for factor, each in named("brightness"):
        wanted = (pixels.float() * factor).clamp(0, 255)
        torch.testing.assert_close(each.of(pixels).float(), wanted, atol=1, rtol=0)


def test_blur_is_a_gaussian_of_a_share_of_the_shorter_side() -> None:
    noise = torch.randint(0, 256, (3, 60, 80), generator=torch.Generator().manual_seed(0))
    pixels = noise.to(torch.uint8)
    for percent, each in named("blur"):
        sigma = percent / 100 * 60
        twin = gaussian_filter(pixels.numpy().astype(float), (0, sigma, sigma), mode="mirror")
        np.testing.assert_allclose(each.of(pixels).numpy(), twin, atol=2.5)


def test_images_are_corrupted_as_they_are_asked_for(pixels: Tensor) -> None:
    images = [LabelledImage(str(label), pixels, label) for label in range(3)]
    found = Corrupted(images, CORRUPTIONS[0])
    assert [(each.name, each.label) for each in found] == [("0", 0), ("1", 1), ("2", 2)]
    assert isinstance(found[1].source, Tensor)
    assert torch.equal(found[1].source, CORRUPTIONS[0].of(pixels))

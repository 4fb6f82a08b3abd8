"""Corruptions do what their names state, deterministically."""

import re

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from training.data.images import LabelledImage, read_image
from training.ood.corruptions import CORRUPTIONS, Corruption, with_corruption


@pytest.fixture
def pixels() -> Tensor:
    """Returns a smooth gradient, (3, 60, 80) uint8, that brightness changes do not clip much."""
    steps = torch.linspace(60, 190, 80).expand(3, 60, 80)
    return steps.to(torch.uint8)


def named(kind: str) -> list[tuple[float, Corruption]]:
    """Returns the corruptions of a kind with the number in their name."""
    matches = []
    for corruption in CORRUPTIONS:
        if kind in corruption.name:
            number = re.search(r"[\d.]+", corruption.name)
            assert number is not None
            matches.append((float(number[0]), corruption))
    assert len(matches) >= 2
    return matches


def test_corruptions_are_deterministic_and_do_not_modify_their_input(pixels: Tensor) -> None:
    before = pixels.clone()
    for corruption in CORRUPTIONS:
        changed = corruption.apply(pixels)
        torch.rand(3)
        assert torch.equal(changed, corruption.apply(pixels))
        assert torch.equal(pixels, before)
        assert not torch.equal(changed, pixels)
        assert (changed.dtype, changed.shape) == (pixels.dtype, pixels.shape)
    assert len({corruption.name for corruption in CORRUPTIONS}) == len(CORRUPTIONS) == 8


def test_noise_has_its_sigma_and_differs_between_images(pixels: Tensor) -> None:
    other = pixels.flip(-1)
    for percent, corruption in named("noise"):
        noise = corruption.apply(pixels).float() - pixels
        assert float(noise.std()) == pytest.approx(255 * percent / 100, rel=0.05)
        assert abs(float(noise.mean())) < 2
        assert not torch.allclose(noise, corruption.apply(other).float() - other)


def test_brightness_multiplies_the_pixels(pixels: Tensor) -> None:
    for factor, corruption in named("brightness"):
        expected = (pixels.float() * factor).clamp(0, 255)
        torch.testing.assert_close(corruption.apply(pixels).float(), expected, atol=1, rtol=0)


def test_blur_agrees_with_scipy_with_sigma_relative_to_the_shorter_side() -> None:
    noise = torch.randint(0, 256, (3, 60, 80), generator=torch.Generator().manual_seed(0))
    pixels = noise.to(torch.uint8)
    for percent, corruption in named("blur"):
        sigma = percent / 100 * 60
        expected = gaussian_filter(pixels.numpy().astype(float), (0, sigma, sigma), mode="mirror")
        np.testing.assert_allclose(corruption.apply(pixels).numpy(), expected, atol=2.5)


def test_with_corruption_are_made_when_they_are_read(pixels: Tensor) -> None:
    images = [LabelledImage(str(label), pixels, label) for label in range(3)]
    corrupted = with_corruption(images, CORRUPTIONS[0])
    assert [(image.name, image.label) for image in corrupted] == [("0", 0), ("1", 1), ("2", 2)]
    changed = read_image(corrupted[1].name, corrupted[1].source)
    assert torch.equal(changed, CORRUPTIONS[0].apply(pixels))

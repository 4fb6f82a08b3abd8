"""Deterministic image corruptions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from eulerlora.images.preprocess import content_seed
from training.data.augmentation import seeded
from training.data.images import LabelledImage, read_image

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Corruption:
    """A corruption of (3, height, width) uint8 pixels; its name states the parameters."""

    name: str
    transform: Callable[[Tensor], Tensor]

    def apply(self, pixels: Tensor) -> Tensor:
        """Returns the corrupted pixels, uint8. Random numbers depend on pixels and name only."""
        with seeded(CPU, content_seed(pixels, self.name)):
            return self.transform(pixels)


def with_corruption(images: Sequence[LabelledImage], corruption: Corruption) -> list[LabelledImage]:
    """Returns images that are decoded and corrupted each time they are read."""
    return [replace(image, source=partial(_corrupted, image, corruption)) for image in images]


def _corrupted(image: LabelledImage, corruption: Corruption) -> Tensor:
    return corruption.apply(read_image(image.name, image.source))


def _blur(share: float) -> Corruption:
    def transform(pixels: Tensor) -> Tensor:
        sigma = share * min(pixels.shape[1:])
        blurred: Tensor = F.gaussian_blur(pixels, [2 * math.ceil(3 * sigma) + 1] * 2, [sigma] * 2)
        return blurred

    return Corruption(f"Gaussian blur, sigma {share:.0%} of the shorter side", transform)


def _noise(share: float) -> Corruption:
    name = f"Gaussian noise, sigma {share:.0%} of the full range"
    return Corruption(name, lambda pixels: F.gaussian_noise(pixels, sigma=share))


def _brightness(factor: float) -> Corruption:
    name = f"brightness times {factor}"
    return Corruption(name, lambda pixels: F.adjust_brightness(pixels, factor))


CORRUPTIONS = (
    _blur(0.01), _blur(0.03),
    _noise(0.05), _noise(0.15),
    _brightness(0.7), _brightness(0.4),
    _brightness(1.3), _brightness(1.8),
)  # fmt: skip
"""A mild and a strong corruption of each kind; brightness is changed in both directions."""

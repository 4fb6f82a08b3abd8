"""Deterministic changes of test images, of which each image keeps its label.

CORRUPTIONS degrade the image, mildly and strongly. SHIFTS are changes that a camera, a light or an
editing program makes; the lesion stays.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from eulerlora.images.preprocess import content_seed
from training.data.augmentation import CPU, seeded
from training.data.images import LabelledImage, read_image
from training.evaluation.generated_images import tensor_of, text_page

BRIGHTER, DARKER = 1.8, 0.4
WARM, COLD = (1.25, 1.0, 0.7), (0.7, 1.0, 1.25)  # gains of red, green and blue
FIELD, EDGE = 1.0, 0.04  # diameter of the camera's field and width of its edge, per shorter side
LESION = 0.7  # part of the image that is pasted, centred; per side
PASTED = 0.5  # size of the pasted lesion per side of the background


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


def _cast(gains: tuple[float, float, float]) -> Callable[[Tensor], Tensor]:
    def transform(pixels: Tensor) -> Tensor:
        return _uint8(pixels.float() * torch.tensor(gains)[:, None, None])

    return transform


def _camera_border(pixels: Tensor) -> Tensor:
    """Darkens everything outside of a centred circle with a soft edge."""
    height, width = pixels.shape[1:]
    return _uint8(pixels.float() * _disc(height, width, FIELD, FIELD))


def _paste_lesion(pixels: Tensor) -> Tensor:
    """Pastes the centre of the image, as an ellipse, on a page of text or on a plain colour."""
    height, width = pixels.shape[1:]
    background = _background(height, width)
    rows, columns = round(PASTED * height), round(PASTED * width)
    centre = F.center_crop(pixels, [round(LESION * height), round(LESION * width)])
    lesion = F.resize(centre, [rows, columns]).float()
    top = int(torch.randint(height - rows + 1, ()))
    left = int(torch.randint(width - columns + 1, ()))
    mask = _disc(rows, columns, rows / min(rows, columns), columns / min(rows, columns))
    window = background[:, top : top + rows, left : left + columns]
    window.copy_(mask * lesion + (1 - mask) * window)
    return _uint8(background)


def _background(height: int, width: int) -> Tensor:
    """Returns (3, height, width) float32 from 0 to 255, a page of text or a plain colour."""
    if torch.rand(()) < 0.5:
        return torch.randint(256, (3, 1, 1)).float().expand(3, height, width).clone()
    random = np.random.default_rng(int(torch.randint(2**31, ())))
    page: Tensor = F.resize(tensor_of(text_page(random, dark=True)), [height, width])
    return page.to(torch.float32)


def _disc(height: int, width: int, rows: float, columns: float) -> Tensor:
    """Returns (height, width), 1 within a centred ellipse and 0 outside, with a soft edge.

    rows, columns: diameters of the ellipse, per shorter side.
    """
    shorter = min(height, width)
    y = (torch.arange(height) - (height - 1) / 2)[:, None] / (shorter * rows / 2)
    x = (torch.arange(width) - (width - 1) / 2) / (shorter * columns / 2)
    return ((1 - (x**2 + y**2).sqrt()) / EDGE).clamp(0, 1)


def _uint8(pixels: Tensor) -> Tensor:
    return pixels.round().clamp(0, 255).to(torch.uint8)


SHIFTS: Mapping[str, Corruption] = {
    name: Corruption(name, transform)
    for name, transform in {
        "colour-cast-warm": _cast(WARM),
        "colour-cast-cold": _cast(COLD),
        "brighter": _brightness(BRIGHTER).transform,
        "darker": _brightness(DARKER).transform,
        "camera-border": _camera_border,
        "colour-inverted": lambda pixels: 255 - pixels,
        "colour-rotated": lambda pixels: pixels.roll(1, dims=0),
        "pasted-lesion": _paste_lesion,
    }.items()
}
"""Strong changes by name of the set; colour-rotated shows red as green, green as blue."""

"""Deterministic changes of test images that a camera, a light or an editing program makes.

The lesion stays, and each image keeps its label.
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
BLUR, NOISE = 0.03, 0.15  # standard deviations, per shorter side and per full range
WARM, COLD = (1.25, 1.0, 0.7), (0.7, 1.0, 1.25)  # gains of red, green and blue
FIELD, EDGE = 1.0, 0.04  # diameter of the camera's field and width of its edge, per shorter side
LESION = 0.7  # part of the image that is pasted, centred; per side
PASTED = 0.5  # size of the pasted lesion per side of the background


@dataclass(frozen=True)
class Shift:
    """A change of (3, height, width) uint8 pixels. name: of the set of changed images."""

    name: str
    transform: Callable[[Tensor], Tensor]

    def apply(self, pixels: Tensor) -> Tensor:
        """Returns the changed pixels, uint8. Random numbers depend on pixels and name only."""
        with seeded(CPU, content_seed(pixels, self.name)):
            return self.transform(pixels)


def with_shift(images: Sequence[LabelledImage], shift: Shift) -> list[LabelledImage]:
    """Returns images that are decoded and changed each time they are read."""
    return [replace(image, source=partial(_shifted, image, shift)) for image in images]


def _shifted(image: LabelledImage, shift: Shift) -> Tensor:
    return shift.apply(read_image(image.name, image.source))


def _blur(pixels: Tensor) -> Tensor:
    sigma = BLUR * min(pixels.shape[1:])
    blurred: Tensor = F.gaussian_blur(pixels, [2 * math.ceil(3 * sigma) + 1] * 2, [sigma] * 2)
    return blurred


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


SHIFTS: Mapping[str, Shift] = {
    name: Shift(name, transform)
    for name, transform in {
        "colour-cast-warm": _cast(WARM),
        "colour-cast-cold": _cast(COLD),
        "brighter": lambda pixels: F.adjust_brightness(pixels, BRIGHTER),
        "darker": lambda pixels: F.adjust_brightness(pixels, DARKER),
        "blurred": _blur,
        "noisy": lambda pixels: F.gaussian_noise(pixels, sigma=NOISE),
        "camera-border": _camera_border,
        "colour-inverted": lambda pixels: 255 - pixels,
        "colour-rotated": lambda pixels: pixels.roll(1, dims=0),
        "pasted-lesion": _paste_lesion,
    }.items()
}
"""Strong changes by name of the set; colour-rotated shows red as green, green as blue."""

"""What other cameras and examiners do to an image: cast of colour, border, ruler, compression.

Each effect takes one image (3, height, width) and returns a new one of the same shape and type:
uint8 for `jpeg_compression`, values in [0, 1] for the others. Its strength is random, from torch's
global generator; at equal state of the generator the result is equal.
"""

from io import BytesIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from eulerlora.images.decode import channels_first

__all__ = ["camera_border", "colour_change", "jpeg_compression", "ruler"]


def colour_change(pixels: Tensor) -> Tensor:
    """Changes cast, brightness, contrast and saturation of an image, (3, height, width).

    Every change is a product or a mixture with a random factor, uniform in its logarithm.
    """
    lit = pixels * _log_uniform(0.3, (3, 1, 1)) * _log_uniform(0.3)
    gray = lit.mean(dim=0, keepdim=True)
    saturated = gray + (lit - gray) * _log_uniform(0.4)
    level = gray.mean()
    return (level + (saturated - level) * _log_uniform(0.3)).clamp(0, 1)


def _log_uniform(bound: float, shape: tuple[int, ...] = (1,)) -> Tensor:
    """Random factors between exp(-bound) and exp(bound)."""
    return torch.empty(shape).uniform_(-bound, bound).exp()


def camera_border(pixels: Tensor) -> Tensor:
    """Darkens an image (3, height, width) outside of a circle of random size and centre."""
    height, width = pixels.shape[-2:]
    shorter = min(height, width)
    radius = float(torch.empty(()).uniform_(1.0, 1.4)) * shorter / 2  # 1.41 reaches corners
    shift = torch.empty(2).uniform_(-0.05, 0.05) * shorter
    rows = torch.arange(height)[:, None] - (height - 1) / 2 - shift[0]
    columns = torch.arange(width) - (width - 1) / 2 - shift[1]
    inside = (radius - (rows**2 + columns**2).sqrt() + 0.5).clamp(0, 1)  # an edge of one pixel
    return pixels * inside


def ruler(pixels: Tensor) -> Tensor:
    """Draws the ticks of a ruler, dark or light, at the lower edge of (3, height, width)."""
    marked = pixels.clone()
    height, width = pixels.shape[-2:]
    level = float(torch.randint(2, ()))
    ticks = int(torch.randint(6, 16, ()))
    for number in range(ticks):
        column = (2 * number + 1) * width // (2 * ticks)
        length = height // (8 if number % 5 == 0 else 14)
        marked[:, height - max(1, length) :, column] = level
    return marked


def jpeg_compression(pixels: Tensor) -> Tensor:
    """Compresses an image (3, height, width) uint8 as JPEG of random quality; decodes it."""
    file = BytesIO()
    F.to_pil_image(pixels).save(file, "JPEG", quality=int(torch.randint(30, 95, ())))
    with Image.open(file, formats=["JPEG"]) as image:
        return channels_first(np.array(image))

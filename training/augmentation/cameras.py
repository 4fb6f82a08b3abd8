"""Random views of a dermatoscopic image, as other cameras and lights would have taken it."""

from io import BytesIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from eulerlora.images.preprocess import channels_first

CROP_AREA, CROP_RATIO = (0.35, 1.0), (0.8, 1.8)
LOG_GAIN = 0.3  # of a channel: factors from 0.74 to 1.35
LOG_BRIGHTNESS, LOG_CONTRAST, LOG_SATURATION = 0.3, 0.3, 0.4
JPEG_QUALITY = (30, 95)
BORDER_DIAMETER = (1.0, 1.4)  # of the bright field, per shorter side; 1.41 reaches the corners
RULER_TICKS = (6, 16)


def camera_view(size: int) -> v2.Compose:
    """Returns a random view (..., 3, height, width) uint8 -> (..., 3, size, size) in [0, 1].

    A crop at another scale, a symmetry of the square, and other colours; less often blur, JPEG
    compression, the dark border of a camera's field, and the ticks of a ruler. Images of a batch
    share all draws except those of the colours.
    """
    return v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=CROP_AREA, ratio=CROP_RATIO),
            v2.RandomHorizontalFlip(),
            v2.RandomVerticalFlip(),
            v2.RandomApply([v2.Lambda(lambda pixels: pixels.mT)]),
            v2.RandomApply([v2.GaussianBlur(5, (0.2, 1.5))], 0.25),
            v2.RandomApply([v2.Lambda(jpeg_compression)], 0.25),
            v2.ToDtype(torch.float32, scale=True),
            v2.Lambda(colour_change),
            v2.RandomApply([v2.Lambda(camera_border)], 0.15),
            v2.RandomApply([v2.Lambda(ruler)], 0.1),
        ]
    )


def colour_change(pixels: Tensor) -> Tensor:
    """Changes cast, brightness, contrast and saturation of each image of (..., 3, h, w).

    Every change is a product or a mixture with a random factor, uniform in its logarithm.
    """
    per_image = (*pixels.shape[:-3], 1, 1, 1)
    per_channel = (*pixels.shape[:-3], 3, 1, 1)
    lit = pixels * log_uniform(LOG_GAIN, per_channel) * log_uniform(LOG_BRIGHTNESS, per_image)
    gray = lit.mean(dim=-3, keepdim=True)
    saturated = gray + (lit - gray) * log_uniform(LOG_SATURATION, per_image)
    level = gray.mean(dim=(-2, -1), keepdim=True)
    return (level + (saturated - level) * log_uniform(LOG_CONTRAST, per_image)).clamp(0, 1)


def log_uniform(bound: float, shape: tuple[int, ...]) -> Tensor:
    """Returns random factors between exp(-bound) and exp(bound)."""
    return torch.empty(shape).uniform_(-bound, bound).exp()


def camera_border(pixels: Tensor) -> Tensor:
    """Darkens images (..., 3, height, width) outside of a circle of random size and centre."""
    height, width = pixels.shape[-2:]
    shorter = min(height, width)
    radius = float(torch.empty(()).uniform_(*BORDER_DIAMETER)) * shorter / 2
    shift = torch.empty(2).uniform_(-0.05, 0.05) * shorter
    rows = torch.arange(height)[:, None] - (height - 1) / 2 - shift[0]
    columns = torch.arange(width) - (width - 1) / 2 - shift[1]
    inside = (radius - (rows**2 + columns**2).sqrt() + 0.5).clamp(0, 1)  # an edge of one pixel
    return pixels * inside


def ruler(pixels: Tensor) -> Tensor:
    """Draws the ticks of a ruler, dark or light, at the lower edge of (..., 3, height, width)."""
    marked = pixels.clone()
    height, width = pixels.shape[-2:]
    level = float(torch.randint(2, ()))
    ticks = int(torch.randint(*RULER_TICKS, ()))
    for number in range(ticks):
        column = (2 * number + 1) * width // (2 * ticks)
        length = height // (8 if number % 5 == 0 else 14)
        marked[..., height - max(1, length) :, column] = level
    return marked


def jpeg_compression(pixels: Tensor) -> Tensor:
    """Compresses images (..., 3, height, width) uint8 as JPEG of random quality; decodes them."""
    quality = int(torch.randint(*JPEG_QUALITY, ()))
    images = [_through_jpeg(image, quality) for image in pixels.reshape(-1, *pixels.shape[-3:])]
    return torch.stack(images).view_as(pixels)


def _through_jpeg(pixels: Tensor, quality: int) -> Tensor:
    file = BytesIO()
    F.to_pil_image(pixels).save(file, "JPEG", quality=quality)
    with Image.open(file) as image:
        return channels_first(np.array(image))

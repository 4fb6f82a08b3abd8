"""Pictures -> RGB -> (3, size, size) in [0, 1]: the same for training, evaluation and service."""

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from eulerlora.errors import ImageError

WIDE_MODES = {"I;16", "I;16B", "I;16L", "I;16N", "I"}
BACKGROUND = 255  # white, behind what is transparent


@dataclass(frozen=True)
class Picture:
    """An upright RGB picture, and how it came to be one.

    pixels: (3, height, width) uint8. warnings: what had to be converted, in words for a user.
    """

    pixels: Tensor
    warnings: tuple[str, ...]


def upright_rgb(image: Image.Image) -> Picture:
    """The picture as a person would see it: EXIF orientation applied, as RGB.

    16-bit gray is scaled to 8 bits; transparency lies over white; palette, CMYK and gray are
    converted by Pillow's rules. Raises ImageError where nothing opaque is left.
    """
    upright = ImageOps.exif_transpose(image)
    warnings = [] if upright.mode in ("RGB", "L") else [f"converted from {upright.mode} to RGB"]
    if upright.mode in WIDE_MODES:
        wide = np.asarray(upright).astype(np.int64)
        upright = Image.fromarray(np.clip((wide + 128) // 257, 0, 255).astype(np.uint8))
    if upright.has_transparency_data:
        layers = upright.convert("RGBA")
        if layers.getchannel("A").getextrema()[1] == 0:
            raise ImageError("the image is fully transparent; nothing can be seen in it")
        canvas = Image.new("RGBA", layers.size, (BACKGROUND,) * 3 + (255,))
        upright = Image.alpha_composite(canvas, layers)
    pixels = np.array(upright.convert("RGB"))  # (height, width, 3), a copy that torch may own
    return Picture(torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), tuple(warnings))


def resize(pixels: Tensor, size: int) -> Tensor:
    """The network's input: scaled by 1/255, then squashed to a square without a crop.

    pixels: (..., 3, height, width) uint8, or floating point in [0, 1].
    Returns (..., 3, size, size) float32; bilinear with antialias (method, "Images").
    """
    scaled = F.to_dtype(pixels, torch.float32, scale=True)
    square: Tensor = F.resize(
        scaled, [size, size], interpolation=F.InterpolationMode.BILINEAR, antialias=True
    )
    return square

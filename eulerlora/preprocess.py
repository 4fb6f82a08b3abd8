"""Pictures -> RGB -> (3, size, size) in [0, 1]: the same for training, evaluation and service."""

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from PIL import ExifTags, Image
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from eulerlora.errors import ImageError

TO_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> the move that undoes it."""

WIDE_MODES = {"I;16", "I;16B", "I;16L", "I;16N", "I"}


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
    converted by Pillow's rules. Raises ImageError for a mode without an RGB form, or where
    nothing opaque is left.
    """
    move = move_to_upright(image)
    upright = image if move is None else image.transpose(move)
    transparent = upright.has_transparency_data
    plain = upright.mode in ("RGB", "L") and not transparent
    warnings = () if plain else (f"converted from {upright.mode} to RGB",)
    if upright.mode in WIDE_MODES:
        upright = _eight_bits(upright)
    try:
        rgb = _over_white(upright) if transparent else upright.convert("RGB")
    except ValueError as error:
        raise ImageError(f"an image of mode {upright.mode} has no RGB form") from error
    return Picture(channels_first(np.array(rgb)), warnings)


def channels_first(rgb: npt.NDArray[np.uint8]) -> Tensor:
    """(height, width, 3) -> (3, height, width), in memory of its own."""
    return torch.from_numpy(rgb).permute(2, 0, 1).contiguous()


def move_to_upright(image: Image.Image) -> Image.Transpose | None:
    """What the EXIF orientation asks for, if anything.

    ImageOps.exif_transpose would also write all other tags anew, and fail on a broken one.
    """
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except (SyntaxError, ValueError, struct.error):  # an EXIF block that is no TIFF says nothing
        orientation = None
    return TO_UPRIGHT.get(orientation or 1)


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit gray scaled to 8 bits; a gray level that means transparency becomes an alpha."""
    wide = np.asarray(image).astype(np.int64)
    narrow = Image.fromarray(np.clip((wide + 128) // 257, 0, 255).astype(np.uint8))
    if "transparency" in image.info:
        alpha = np.where(wide == image.info["transparency"], 0, 255).astype(np.uint8)
        narrow.putalpha(Image.fromarray(alpha))
    return narrow


def _over_white(image: Image.Image) -> Image.Image:
    layers = image.convert("RGBA")
    if layers.getchannel("A").getextrema()[1] == 0:
        raise ImageError("the image is fully transparent; nothing can be seen in it")
    white = Image.new("RGBA", layers.size, "white")
    return Image.alpha_composite(white, layers).convert("RGB")


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

"""Images -> RGB -> (3, size, size) in [0, 1]: the same for training, evaluation and service."""

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from PIL import ExifTags, Image
from torch import Tensor
from torchvision.transforms import v2
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
"""EXIF orientation -> the transposition that undoes it."""

SIXTEEN_BIT_MODES = {"I;16", "I;16B", "I;16L", "I;16N", "I"}

to_unit_range = v2.ToDtype(torch.float32, scale=True)
"""uint8 pixels -> float32 in [0, 1], scaled by 1/255; floating-point pixels are not scaled."""


@dataclass(frozen=True)
class RgbImage:
    """An upright RGB image.

    pixels: (3, height, width) uint8. warnings: the conversions that were made, for the user.
    """

    pixels: Tensor
    warnings: tuple[str, ...]


def upright_rgb(image: Image.Image) -> RgbImage:
    """Returns the image as viewers show it: EXIF orientation applied, in RGB.

    16-bit gray is scaled to 8 bits. Transparent images are composited on white. Palette, CMYK and
    gray are converted by Pillow. Raises ImageError for a mode that cannot be converted to RGB and
    for a fully transparent image.
    """
    transposition = upright_transposition(image)
    upright = image if transposition is None else image.transpose(transposition)
    transparent = upright.has_transparency_data
    unconverted = upright.mode in ("RGB", "L") and not transparent
    warnings = () if unconverted else (f"converted from {upright.mode} to RGB",)
    if upright.mode in SIXTEEN_BIT_MODES:
        upright = _to_eight_bits(upright)
    try:
        rgb = _composite_on_white(upright) if transparent else upright.convert("RGB")
    except ValueError as error:
        raise ImageError(f"images of mode {upright.mode} cannot be converted to RGB") from error
    return RgbImage(channels_first(np.array(rgb)), warnings)


def channels_first(rgb: npt.NDArray[np.uint8]) -> Tensor:
    """Copies (height, width, 3) to a contiguous tensor (3, height, width)."""
    return torch.from_numpy(rgb).permute(2, 0, 1).contiguous()


def upright_transposition(image: Image.Image) -> Image.Transpose | None:
    """Returns the transposition for the image's EXIF orientation; None if it needs none.

    Pillow's ImageOps.exif_transpose also rewrites all other tags and fails on a damaged one.
    """
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except (SyntaxError, ValueError, struct.error):  # an EXIF block that is not a TIFF structure
        orientation = None
    return TO_UPRIGHT.get(orientation or 1)


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Scales 16-bit gray to 8 bits; a gray level declared transparent becomes an alpha channel."""
    wide = np.asarray(image).astype(np.int64)
    narrow = Image.fromarray(np.clip((wide + 128) // 257, 0, 255).astype(np.uint8))
    if "transparency" in image.info:
        alpha = np.where(wide == image.info["transparency"], 0, 255).astype(np.uint8)
        narrow.putalpha(Image.fromarray(alpha))
    return narrow


def _composite_on_white(image: Image.Image) -> Image.Image:
    layers = image.convert("RGBA")
    if layers.getchannel("A").getextrema()[1] == 0:
        raise ImageError("the image is fully transparent")
    white = Image.new("RGBA", layers.size, "white")
    return Image.alpha_composite(white, layers).convert("RGB")


def resize(pixels: Tensor, size: int) -> Tensor:
    """Returns the network's input: scaled to [0, 1], resized to a square without cropping.

    pixels: (..., 3, height, width) uint8, or floating point in [0, 1].
    Returns (..., 3, size, size) float32. Bilinear with antialias; the aspect ratio changes.
    """
    square: Tensor = F.resize(
        to_unit_range(pixels),
        [size, size],
        interpolation=F.InterpolationMode.BILINEAR,
        antialias=True,
    )
    return square

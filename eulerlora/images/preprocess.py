"""Images -> sRGB -> (3, size, size) in [0, 1]: the same for training, evaluation and service."""

import hashlib
import struct
import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import ExifTags, Image
from torch import Tensor
from torch.nn import functional as F

from eulerlora.errors import ImageError
from eulerlora.images.colour import PROFILE, ProfileError, colour_constant, is_srgb, to_srgb
from eulerlora.settings import Preprocessing

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

MIN_GREATEST_ALPHA, MIN_MEAN_ALPHA = 128, 25
"""Of 255. Below them, an image on white shows almost nothing of its content."""

RESIZED_ROWS = 256
"""Rows that are resized at a time; so a large image needs no copy in floating point."""

SIXTEEN_BIT_MODES = {"I;16", "I;16B", "I;16L", "I;16N", "I"}

Filter = Literal["bilinear", "bicubic"]


# Exceptions of Pillow's parsers for malformed files; the list is a result of fuzzing.
PARSER_ERRORS = (
    OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, OverflowError, TypeError,
    struct.error, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip


class Conversion(StrEnum):
    """The codes of image warnings."""

    CONVERTED_TO_RGB = "converted_to_rgb"
    CONVERTED_TO_SRGB = "converted_to_srgb"
    PROFILE_IGNORED = "profile_ignored"


@dataclass(frozen=True)
class ImageWarning:
    """A conversion of an image, with its text for the user."""

    code: Conversion
    message: str


@dataclass(frozen=True)
class RgbImage:
    """An upright sRGB image.

    pixels: (3, height, width) uint8. warnings: the conversions that were made.
    """

    pixels: Tensor
    warnings: tuple[ImageWarning, ...]


def upright_rgb(image: Image.Image) -> RgbImage:
    """Returns the image as viewers show it: EXIF orientation applied, in sRGB.

    16-bit gray is scaled to 8 bits. Colours are converted through the embedded ICC profile; without
    one, palette, CMYK and gray are converted by Pillow. Transparent images are composited on white.
    Raises ImageError for an image that is damaged, that has no RGB form or that is fully
    transparent.
    """
    _load(image)
    transposition = upright_transposition(image)
    upright = image if transposition is None else image.transpose(transposition)
    transparent = upright.has_transparency_data
    warnings: list[ImageWarning] = []
    if transparent or upright.mode not in ("RGB", "L"):
        message = f"converted from {upright.mode} to RGB"
        warnings.append(ImageWarning(Conversion.CONVERTED_TO_RGB, message))
    if upright.mode in SIXTEEN_BIT_MODES:
        upright = _to_eight_bits(upright)
    try:
        upright, warning = _with_srgb_colours(upright, image.info.get(PROFILE, b""))
        rgb = _composite_on_white(upright) if transparent else upright.convert("RGB")
    except ValueError as error:
        raise ImageError(f"images of mode {upright.mode} cannot be converted to RGB") from error
    except PARSER_ERRORS as error:  # such as the transparent colour of another mode
        raise ImageError("the image contradicts its own header") from error
    return RgbImage(channels_first(np.array(rgb)), (*warnings, *warning))


def is_upright_srgb(image: Image.Image) -> bool:
    """Returns True if `upright_rgb` changes no pixel of an RGB image.

    Reads only the header. True if the image has no EXIF orientation, no transparent colour and no
    colour profile but that of sRGB.
    """
    return (
        image.mode == "RGB"
        and not image.has_transparency_data
        and is_srgb(image.info.get(PROFILE, b""))
        and upright_transposition(image) is None
    )


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


def _load(image: Image.Image) -> None:
    """Decodes the pixels. Raises ImageError if the file is damaged or contradicts itself."""
    try:
        image.load()
    except PARSER_ERRORS as error:
        raise ImageError("the image is damaged or truncated") from error
    if image.mode in ("P", "PA") and image.palette is None:
        raise ImageError("the image has indexed colours but no palette")


def _with_srgb_colours(
    image: Image.Image, profile: bytes | None
) -> tuple[Image.Image, tuple[ImageWarning, ...]]:
    """Returns the image with the colours of its profile in sRGB, and a warning of the change."""
    try:
        converted = to_srgb(image, profile)
    except ProfileError as error:
        message = f"the colour profile is ignored: {error}"
        return image, (ImageWarning(Conversion.PROFILE_IGNORED, message),)
    if converted is None:
        return image, ()
    message = "converted from the embedded colour profile to sRGB"
    return converted, (ImageWarning(Conversion.CONVERTED_TO_SRGB, message),)


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
    alpha = layers.getchannel("A")
    lowest, highest = alpha.getextrema()
    if highest == 0:
        raise ImageError("the image is fully transparent")
    levels = np.asarray(alpha)
    if levels.max() < MIN_GREATEST_ALPHA or levels.mean() < MIN_MEAN_ALPHA:
        raise ImageError("the image is nearly transparent")
    if lowest == 255:
        return layers.convert("RGB")
    white = Image.new("RGBA", layers.size, "white")
    return Image.alpha_composite(white, layers).convert("RGB")


def network_input(pixels: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Returns the network's input, (..., 3, size, size) float32 in [0, 1].

    pixels: (..., 3, height, width) uint8, or floating point in [0, 1].
    """
    bicubic = preprocessing.interpolation == "bicubic-antialias"
    filter_: Filter = "bicubic" if bicubic else "bilinear"
    if preprocessing.shorter_side is None:
        return resize(pixels, preprocessing.size, filter_)
    height, width = pixels.shape[-2:]
    shorter, side = min(height, width), preprocessing.shorter_side
    shape = (height * side // shorter, width * side // shorter)  # rounded as by torchvision
    return _center(_resized(pixels, shape, filter_), preprocessing.size)


def normalise(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Returns images (n, 3, size, size) in [0, 1] with the colours that the backbone expects."""
    images = colour_constant(images, preprocessing.colour_constancy)
    channels = zip(preprocessing.mean, preprocessing.std, strict=True)
    if all(channel == (0, 1) for channel in channels):
        return images
    mean, std = (
        torch.tensor(values, device=images.device).view(3, 1, 1)
        for values in (preprocessing.mean, preprocessing.std)
    )
    return (images - mean) / std


def resize(pixels: Tensor, size: int, filter_: Filter = "bilinear") -> Tensor:
    """Returns pixels scaled to [0, 1] and resized to a square without cropping.

    pixels: (..., 3, height, width) uint8, or floating point in [0, 1].
    Returns (..., 3, size, size) float32. With antialias; the aspect ratio changes.
    """
    return _resized(pixels, (size, size), filter_)


def _resized(pixels: Tensor, shape: tuple[int, int], filter_: Filter) -> Tensor:
    """Returns pixels scaled to [0, 1] and resized to (height, width).

    Values that a bicubic filter overshoots are clipped.
    """
    # The horizontal filter is the first in either case: the result is the same to the last bit.
    rows = [
        _filtered(part, (part.shape[-2], shape[1]), filter_)
        for part in pixels.split(RESIZED_ROWS, dim=-2)
    ]
    resized = _filtered(torch.cat(rows, dim=-2), shape, filter_)
    return resized.clamp(0, 1) if filter_ == "bicubic" else resized


def _filtered(pixels: Tensor, shape: tuple[int, int], filter_: Filter) -> Tensor:
    """Returns pixels scaled to [0, 1], filtered to (height, width)."""
    values = to_unit_range(pixels)
    if values.shape[-2:] == shape:
        return values
    batch = values.reshape(-1, *values.shape[-3:])
    filtered = F.interpolate(batch, size=shape, mode=filter_, align_corners=False, antialias=True)
    return filtered.reshape(*values.shape[:-2], *shape)


def to_unit_range(pixels: Tensor) -> Tensor:
    """Returns float32 pixels: uint8 scaled to [0, 1] by 1/255, floating point unchanged."""
    values = pixels.to(torch.float32)
    return values if pixels.is_floating_point() else values.mul_(1 / 255)


def _center(pixels: Tensor, size: int) -> Tensor:
    """Returns the central square; offsets are rounded as by torchvision."""
    top, left = (round((side - size) / 2) for side in pixels.shape[-2:])
    return pixels[..., top : top + size, left : left + size]


def content_seed(pixels: Tensor, revision: str) -> int:
    """Returns a seed in [0, 2**32) from an image's pixels and the model's revision.

    pixels: any shape and dtype, as decoded and before resizing. The metadata of the image file has
    no influence.
    """
    digest = hashlib.sha256(revision.encode())
    digest.update(f"{pixels.dtype}{list(pixels.shape)}".encode())
    digest.update(pixels.contiguous().cpu().numpy().data)
    return int.from_bytes(digest.digest()[:4], "big")

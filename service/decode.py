"""Image bytes -> picture: format and size are decided from the header, before any decoder runs."""

import struct
import zlib
from io import BytesIO
from typing import Literal

import imagesize
from PIL import Image

from eulerlora.errors import ImageError
from eulerlora.preprocess import Picture, upright_rgb
from service.errors import UnsupportedMedia, UnusableImage
from service.settings import ImageLimits

Format = Literal["JPEG", "PNG", "WEBP"]

MEDIA_TYPES: dict[str, Format] = {"image/jpeg": "JPEG", "image/png": "PNG", "image/webp": "WEBP"}

# What Pillow's parsers raise on hostile bytes, as seen by fuzzing them.
BROKEN = (
    OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, OverflowError, TypeError,
    struct.error, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip


def sniff(data: bytes) -> Format | None:
    """The image format that the first bytes name, or None for any but the three served."""
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WEBP"
    return None


def decode(data: bytes, limits: ImageLimits, declared: str | None = None) -> Picture:
    """The upright RGB picture in `data`.

    declared: the media type that the client stated; where it disagrees, the content decides and
    the picture carries a warning. Raises UnsupportedMedia for anything but JPEG, PNG and WebP,
    and UnusableImage for one that is broken, animated, or outside the limits by its header.
    """
    found = sniff(data)
    if found is None:
        raise UnsupportedMedia("wanted a JPEG, PNG or WebP image; the content is none of these")
    check_size(data, limits)
    try:
        with Image.open(BytesIO(data), formats=[found]) as image:
            if getattr(image, "is_animated", False):
                raise UnusableImage("wanted a single picture; the image is animated")
            image.load()
            picture = upright_rgb(image)
    except ImageError as error:
        raise UnusableImage(str(error)) from error
    except BROKEN as error:
        raise UnusableImage(f"the {found} data is broken or truncated") from error
    if MEDIA_TYPES.get(declared or "", found) == found:
        return picture
    return Picture(picture.pixels, (*picture.warnings, f"declared otherwise, decoded as {found}"))


def check_size(data: bytes, limits: ImageLimits) -> None:
    """Raises UnusableImage where the header's width and height are outside the limits."""
    try:
        width, height = imagesize.get(BytesIO(data))
    except BROKEN as error:
        raise UnusableImage("the image's header is broken") from error
    if width < 0 or height < 0:
        raise UnusableImage("the image's header is broken or truncated")
    if min(width, height) < limits.min_side or max(width, height) > limits.max_side:
        raise UnusableImage(
            f"each side must have {limits.min_side} to {limits.max_side} pixels; "
            f"the image is {width} x {height}"
        )
    if width * height > limits.max_pixels:
        raise UnusableImage(
            f"at most {limits.max_pixels:,} pixels are decoded; the image is {width} x {height}"
        )

"""Image bytes -> picture: format and size are decided from the header, before any decoder runs."""

import struct
import zlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import PurePath
from typing import Literal

import imagesize
import simplejpeg
from PIL import Image

from eulerlora.errors import ImageError
from eulerlora.preprocess import RgbImage, channels_first, upright_rgb, upright_transposition
from eulerlora_client.contract.problems import UnsupportedMedia, UnusableImage
from service.settings import ImageLimits

Format = Literal["JPEG", "PNG", "WEBP"]

MEDIA_TYPES: dict[str, Format] = {"image/jpeg": "JPEG", "image/png": "PNG", "image/webp": "WEBP"}

EXTENSIONS: dict[str, Format] = {
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".png": "PNG",
    ".webp": "WEBP",
}
NEUTRAL = {"", "application/octet-stream"}

PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
PNG_BIT_DEPTH_AT = 24

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


@dataclass(frozen=True)
class Declared:
    """What a client says a file is: its media type and its name, where it says so at all."""

    media_type: str | None = None
    filename: str | None = None

    def disagrees(self, found: Format) -> bool:
        """Whether the media type or the name's extension is that of something else."""
        stated = (self.media_type or "").partition(";")[0].strip().lower()
        extension = PurePath(self.filename or "").suffix.lower()
        return (stated not in NEUTRAL and MEDIA_TYPES.get(stated) != found) or (
            extension != "" and EXTENSIONS.get(extension) != found
        )


def decode(data: bytes, limits: ImageLimits, declared: Declared | None = None) -> RgbImage:
    """The upright RGB picture in `data`.

    declared: where it disagrees with the content, the content decides and the picture carries a
    warning. Raises UnsupportedMedia for anything but JPEG, PNG and WebP, and UnusableImage for
    one that is broken, animated, or outside the limits by its header.
    """
    found = sniff(data)
    if found is None:
        raise UnsupportedMedia("wanted a JPEG, PNG or WebP image; the content is none of these")
    try:
        check_size(imagesize.get(BytesIO(data)), limits)
        picture = _decode(data, found, limits)
    except ImageError as error:
        raise UnusableImage(str(error)) from error
    except BROKEN as error:
        raise _broken(found) from error
    if declared is None or not declared.disagrees(found):
        return picture
    return RgbImage(picture.pixels, (*picture.warnings, f"declared otherwise, decoded as {found}"))


def _decode(data: bytes, found: Format, limits: ImageLimits) -> RgbImage:
    if found == "PNG":
        with Image.open(BytesIO(data), formats=[found]) as image:
            image.verify()  # CRCs and the end chunk, which decoding does not look at
        if PNG_END not in data:
            raise _broken(found)
    with Image.open(BytesIO(data), formats=[found]) as image:
        check_size(image.size, limits)  # two headers in one file: the decoder obeys the last
        if found == "JPEG":
            if image.mode == "RGB" and upright_transposition(image) is None:
                return RgbImage(channels_first(simplejpeg.decode_jpeg(data)), ())
            _check_jpeg(data)
        elif getattr(image, "is_animated", False):
            raise UnusableImage("wanted a single picture; the image is animated")
        if image.mode == "RGB" and data[PNG_BIT_DEPTH_AT] == 16 and found == "PNG":
            _narrow_transparent_colour(image)
        image.load()
        return upright_rgb(image)


def _broken(found: Format) -> UnusableImage:
    return UnusableImage(f"the {found} data is broken or truncated")


def _check_jpeg(data: bytes) -> None:
    """Raises ValueError where libjpeg has to make up for missing or broken data.

    Pillow keeps those warnings to itself, and fills what is missing with gray. A plain JPEG is
    therefore decoded by simplejpeg alone, to the same pixels, and others by both.
    """
    simplejpeg.decode_jpeg(
        data, "GRAY", fastdct=True, fastupsample=True, min_height=1, min_width=1, min_factor=8
    )


def _narrow_transparent_colour(image: Image.Image) -> None:
    """Pillow narrows 16-bit pixels to their upper bytes, but not the colour to compare them to."""
    colour = image.info.get("transparency")
    if isinstance(colour, tuple):
        image.info["transparency"] = tuple(value >> 8 for value in colour)


def check_size(size: tuple[int, int], limits: ImageLimits) -> None:
    """Raises UnusableImage where a header's (width, height) is outside the limits."""
    width, height = size
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

"""Decodes an image file; the header is checked for format and size before a decoder runs."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import PurePath
from typing import Literal

import imagesize
import simplejpeg
from PIL import Image
from torch import Tensor

from eulerlora.errors import ImageError
from eulerlora.preprocess import (
    PARSER_ERRORS,
    RgbImage,
    channels_first,
    is_upright_srgb,
    upright_rgb,
)
from eulerlora_client.contract.predictions import PredictionWarning, WarningCode
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


def sniff(data: bytes) -> Format | None:
    """Returns the image format by its magic number; None for any other than the three served."""
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WEBP"
    return None


@dataclass(frozen=True)
class Declared:
    """The media type and file name that the client sent, if any."""

    media_type: str | None = None
    filename: str | None = None

    def disagrees(self, file_format: Format) -> bool:
        """Returns True if the media type or the extension belongs to another format."""
        media_type = (self.media_type or "").partition(";")[0].strip().lower()
        extension = PurePath(self.filename or "").suffix.lower()
        return (media_type not in NEUTRAL and MEDIA_TYPES.get(media_type) != file_format) or (
            extension != "" and EXTENSIONS.get(extension) != file_format
        )


@dataclass(frozen=True)
class DecodedImage:
    """An upright RGB image: (3, height, width) uint8, and warnings for the user."""

    pixels: Tensor
    warnings: tuple[PredictionWarning, ...]


def decode(data: bytes, limits: ImageLimits, declared: Declared | None = None) -> DecodedImage:
    """Returns the upright RGB image in `data`.

    declared: if it disagrees with the content, the content decides and the image has a warning.
    Raises UnsupportedMedia for any format but JPEG, PNG and WebP, and UnusableImage for a file
    that is broken or animated, or whose header is outside the limits.
    """
    file_format = sniff(data)
    if file_format is None:
        raise UnsupportedMedia("expected a JPEG, PNG or WebP image; the content is none of these")
    try:
        check_size(imagesize.get(BytesIO(data)), limits)
        image = _decode(data, file_format, limits)
    except ImageError as error:
        raise UnusableImage(str(error)) from error
    except PARSER_ERRORS as error:
        raise _broken(file_format) from error
    warnings = [
        PredictionWarning(code=WarningCode(warning.code), message=warning.message)
        for warning in image.warnings
    ]
    if declared is not None and declared.disagrees(file_format):
        message = f"declared as another type, decoded as {file_format}"
        warnings.append(PredictionWarning(code=WarningCode.DECLARED_TYPE_DIFFERS, message=message))
    return DecodedImage(image.pixels, tuple(warnings))


def _decode(data: bytes, file_format: Format, limits: ImageLimits) -> RgbImage:
    if file_format == "PNG":
        with Image.open(BytesIO(data), formats=[file_format]) as image:
            image.verify()  # checks CRCs, which decoding does not
        if PNG_END not in data:
            raise _broken(file_format)
    with Image.open(BytesIO(data), formats=[file_format]) as image:
        check_size(image.size, limits)  # the last of several headers counts
        if file_format == "JPEG":
            if is_upright_srgb(image):
                return RgbImage(channels_first(simplejpeg.decode_jpeg(data)), ())
            _check_jpeg(data)
        elif getattr(image, "is_animated", False):
            raise UnusableImage("expected a single frame; the image is animated")
        if image.mode == "RGB" and data[PNG_BIT_DEPTH_AT] == 16 and file_format == "PNG":
            _narrow_transparent_colour(image)
        image.load()
        return upright_rgb(image)


def _broken(file_format: Format) -> UnusableImage:
    return UnusableImage(f"the {file_format} data is broken or truncated")


def _check_jpeg(data: bytes) -> None:
    """Raises ValueError if libjpeg warns of missing or broken data.

    Pillow suppresses these warnings and fills missing data with gray. simplejpeg therefore decodes
    a plain RGB JPEG alone, with the same pixels as Pillow, and checks all others.
    """
    simplejpeg.decode_jpeg(
        data, "GRAY", fastdct=True, fastupsample=True, min_height=1, min_width=1, min_factor=8
    )


def _narrow_transparent_colour(image: Image.Image) -> None:
    """Converts a transparent colour of 16 bits to 8 bits; Pillow converts only the pixels."""
    colour = image.info.get("transparency")
    if isinstance(colour, tuple):
        image.info["transparency"] = tuple(value >> 8 for value in colour)


def check_size(size: tuple[int, int], limits: ImageLimits) -> None:
    """Raises UnusableImage if (width, height) is outside the limits."""
    width, height = size
    if width < 0 or height < 0:
        raise UnusableImage("the image's header is broken or truncated")
    if min(width, height) < limits.min_side or max(width, height) > limits.max_side:
        raise UnusableImage(
            f"expected sides of {limits.min_side} to {limits.max_side} pixels; "
            f"the image is {width} x {height}"
        )
    if width * height > limits.max_pixels:
        raise UnusableImage(
            f"expected at most {limits.max_pixels:,} pixels; the image is {width} x {height}"
        )

"""Decodes an image file; the header is checked for format and size before a decoder runs."""

from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import PurePath

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image
from torch import Tensor

from eulerlora.images.files import (
    RgbImage,
    channels_first,
    check_sample_range,
    is_upright_srgb,
    jpeg_reduction,
    upright_rgb,
    upright_transposition,
)
from eulerlora_client.images import PARSER_ERRORS
from eulerlora_contract.answers import PredictionWarning, WarningCode
from eulerlora_contract.errors import ImageError
from eulerlora_contract.problems import UnusableImage
from service.decoding import dicom
from service.decoding.header import (
    Format,
    ImageHeader,
    broken,
    check_pixels,
    check_size,
    check_structure,
    read_header,
)
from service.settings import ImageSettings

MEDIA_TYPES: dict[str, Format] = {"image/jpeg": "JPEG", "image/png": "PNG", "image/webp": "WEBP"}
ALL_MEDIA_TYPES: dict[str, Format] = {**MEDIA_TYPES, dicom.MEDIA_TYPE: "DICOM"}
EXTENSIONS: dict[str, Format] = {
    dicom.EXTENSION: "DICOM",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".png": "PNG",
    ".webp": "WEBP",
}
COLOUR_SPACES = {"RGB": "RGB", "L": "GRAY", "CMYK": "CMYK"}
"""Pillow's mode of a JPEG -> the name in simplejpeg."""

NEUTRAL = {"", "application/octet-stream"}
"""Media types that name no format."""

PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
PNG_BIT_DEPTH_AT = 24

SWAPPING_SIDES = {
    Image.Transpose.TRANSPOSE,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
    Image.Transpose.ROTATE_270,
}


@dataclass(frozen=True)
class Declared:
    """The media type and file name that the client sent, if any."""

    media_type: str | None = None
    filename: str | None = None

    def disagrees(self, file_format: Format) -> bool:
        """Returns True if the media type or the extension belongs to another format."""
        media_type = without_parameters(self.media_type or "")
        extension = PurePath(self.filename or "").suffix.lower()
        return (media_type not in NEUTRAL and ALL_MEDIA_TYPES.get(media_type) != file_format) or (
            extension != "" and EXTENSIONS.get(extension) != file_format
        )


@dataclass(frozen=True)
class DecodedImage:
    """An upright RGB image.

    pixels: (3, height, width) uint8, possibly reduced. width, height: before the reduction.
    warnings: for the user.
    """

    pixels: Tensor
    width: int
    height: int
    warnings: tuple[PredictionWarning, ...]


def without_parameters(media_type: str) -> str:
    """Returns a media type in lower case, without its parameters."""
    return media_type.partition(";")[0].strip().lower()


def header_of(data: bytes, limits: ImageSettings) -> ImageHeader:
    """Returns the header of an image file, or of a DICOM file if the limits allow them.

    Raises as `read_header` and `read_dicom_header`.
    """
    if limits.dicom and dicom.is_dicom(data):
        return dicom.read_dicom_header(data, limits)
    return read_header(data, limits)


def decode(
    data: bytes,
    limits: ImageSettings,
    declared: Declared = Declared(),
    input_side: int | None = None,
) -> DecodedImage:
    """Returns the upright RGB image in `data`.

    declared: if it disagrees with the content, the content decides and the image has a warning.
    input_side: if given, of the network's input; a large JPEG is then reduced (`jpeg_reduction`).
    Raises UnsupportedMedia for any format but JPEG, PNG and WebP, and DICOM if the limits allow
    it, and UnusableImage for a file that is broken or animated, or whose header is outside the
    limits.
    """
    header = header_of(data, limits)
    if header.format == "DICOM":
        inner = dicom.image_file(data, limits)
        image = _decoded(inner, read_header(inner, limits), limits, input_side)
    else:
        image = _decoded(data, header, limits, input_side)
    if not declared.disagrees(header.format):
        return image
    message = f"declared as another type, decoded as {header.format}"
    warning = PredictionWarning(code=WarningCode.DECLARED_TYPE_DIFFERS, message=message)
    return replace(image, warnings=(*image.warnings, warning))


def _decoded(
    data: bytes, header: ImageHeader, limits: ImageSettings, input_side: int | None
) -> DecodedImage:
    """Returns the image in a JPEG, PNG or WebP file."""
    check_structure(data, header.format)
    try:
        if header.format == "JPEG":
            image, (width, height) = _decode_jpeg(data, limits, input_side)
        else:
            image = _decode_other(data, header.format, limits)
            _, height, width = image.pixels.shape
    except ImageError as error:
        raise UnusableImage(str(error)) from error
    except PARSER_ERRORS as error:
        raise broken(header.format) from error
    return DecodedImage(image.pixels, width, height, image.warnings)


def _decode_jpeg(
    data: bytes, limits: ImageSettings, input_side: int | None
) -> tuple[RgbImage, tuple[int, int]]:
    """Returns the image, and its upright width and height before the reduction."""
    with Image.open(BytesIO(data), formats=["JPEG"]) as image:
        check_size(image.size, limits, "JPEG")  # the last of several headers counts
        swaps_sides = upright_transposition(image) in SWAPPING_SIDES
        upright_size = image.size[::-1] if swaps_sides else image.size
        factor = 1 if input_side is None else jpeg_reduction(image.size, input_side)
        size = (-(-image.width // factor), -(-image.height // factor))
        check_pixels(size, limits.max_pixels)
        pixels = _strictly_decoded(data, image.mode, size)
        if is_upright_srgb(image):
            return RgbImage(channels_first(pixels), ()), upright_size
        height, width = pixels.shape[:2]
        reduced = Image.frombuffer(image.mode, (width, height), pixels, "raw", image.mode, 0, 1)
        reduced.info = image.info
        return upright_rgb(reduced), upright_size


def _decode_other(data: bytes, file_format: Format, limits: ImageSettings) -> RgbImage:
    if file_format == "PNG":
        with Image.open(BytesIO(data), formats=[file_format]) as image:
            image.verify()  # checks CRCs, which decoding does not
        if PNG_END not in data:
            raise broken(file_format)
    with Image.open(BytesIO(data), formats=[file_format]) as image:
        check_size(image.size, limits, file_format)
        if getattr(image, "is_animated", False):
            raise UnusableImage("expected a single frame; the image is animated")
        if image.mode == "RGB" and data[PNG_BIT_DEPTH_AT] == 16 and file_format == "PNG":
            _narrow_transparent_colour(image)
        check_sample_range(image)
        image.load()
        return upright_rgb(image)


def _strictly_decoded(data: bytes, mode: str, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Returns the pixels of a JPEG, which are those that Pillow decodes at any reduction.

    mode: of Pillow. size: width and height after the reduction. Returns (height, width) for mode L
    and (height, width, channels) for others. Raises ValueError if libjpeg warns of missing or
    broken data, which Pillow fills with gray.
    """
    width, height = size
    pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(
        data, COLOUR_SPACES[mode], min_width=width, min_height=height
    )
    if mode == "CMYK":  # files store inverted inks
        np.subtract(255, pixels, out=pixels)
    return pixels[..., 0] if mode == "L" else pixels


def _narrow_transparent_colour(image: Image.Image) -> None:
    """Converts a transparent colour of 16 bits to 8 bits; Pillow converts only the pixels."""
    colour = image.info.get("transparency")
    if isinstance(colour, tuple):
        image.info["transparency"] = tuple(value >> 8 for value in colour)

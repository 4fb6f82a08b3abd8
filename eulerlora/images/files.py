"""Image files of folders, and their upright RGB pixels."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from eulerlora.errors import ImageError
from eulerlora.images.preprocess import RgbImage, upright_rgb

EXTENSIONS = (".jpeg", ".jpg", ".png", ".webp")

SIXTEEN_BITS = "16B"  # the end of Pillow's raw mode
UNUSED_BITS = 4

REDUCTIONS = (4, 2)
MIN_REDUCED_SIDES = 3
"""A reduced image has at least this multiple of the network's input on its shorter side."""

MIN_REDUCED_LONG_SIDE_PX = 896
"""Longer side of a reduced image; the image quality is measured at a seventh of it."""


def is_image_name(name: str) -> bool:
    """True if the file extension is that of a supported image format."""
    return name.lower().endswith(EXTENSIONS)


def image_files(folder: Path) -> list[Path]:
    """Returns all image files below a folder, sorted; follows links to folders."""
    return sorted(path for path in _files_below(folder) if is_image_name(path.name))


def jpeg_reduction(size: tuple[int, int], input_side: int) -> int:
    """Returns 1, 2 or 4: the factor by which a JPEG of (width, height) is reduced while decoding.

    The decoder then computes fewer coefficients of the blocks of 8 x 8 pixels. input_side: of the
    network's input. Probabilities differ from those after a full decode by less than 0.005.
    """
    for factor in REDUCTIONS:
        shorter, longer = min(size) // factor, max(size) // factor
        if shorter >= MIN_REDUCED_SIDES * input_side and longer >= MIN_REDUCED_LONG_SIDE_PX:
            return factor
    return 1


def reduce_jpeg(image: Image.Image, input_side: int) -> None:
    """Makes Pillow reduce a JPEG by `jpeg_reduction` when it decodes it; call it before that.

    Has no effect on other formats.
    """
    factor = jpeg_reduction(image.size, input_side)
    image.draft(None, (image.width // factor, image.height // factor))


def check_sample_range(image: Image.Image) -> None:
    """Raises ImageError for a PNG of 16 bits per sample that uses only 12 of them, or fewer.

    Scaled to 8 bits, it would be nearly black. Call it before the image is loaded; it loads such
    images.
    """
    if not any(str(tile[3]).endswith(SIXTEEN_BITS) for tile in getattr(image, "tile", ())):
        return
    image.load()
    bits = 16 if image.mode.startswith("I") else 8  # Pillow keeps 16 bits of gray only
    samples = np.asarray(image)
    colours = samples[..., :-1] if "A" in image.getbands() else samples
    if int(colours.max()) >> (bits - UNUSED_BITS) == 0:
        raise ImageError(
            "expected samples from 0 to 65,535 in a file of 16 bits per sample; "
            "all samples are below 4,096, as in data of 12 bits"
        )


def unread_file(image: Image.Image) -> Path | None:
    """Returns the JPEG file of an image that was opened by its path and not read yet.

    None for any other image. The file can be decoded at reduced size without changing the image.
    """
    if type(image) is not JpegImageFile or not image.filename or image.decoderconfig:
        return None  # a subclass has several images
    file = Path(os.fsdecode(image.filename))
    return file if image.tile and file.is_file() else None


def read_pixels(file: Path | BinaryIO, name: str, input_side: int | None = None) -> Tensor:
    """Returns (3, height, width) uint8, as `read_image` does."""
    return read_image(file, name, input_side).pixels


def read_image(file: Path | BinaryIO, name: str, input_side: int | None = None) -> RgbImage:
    """Returns the upright image of a file in sRGB, with warnings of its conversions.

    input_side: if given, of the network's input; a large JPEG is then reduced (`jpeg_reduction`).
    Raises ImageError, with a message that begins with `name`.
    """
    try:
        with Image.open(file) as image:
            if input_side is not None:
                reduce_jpeg(image, input_side)
            check_sample_range(image)
            return upright_rgb(image)
    except ImageError as error:
        raise ImageError(f"{name}: {error}") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ImageError(f"{name}: cannot be opened as an image: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Returns why Pillow failed, without its message, which may show a memory address."""
    if isinstance(error, UnidentifiedImageError):
        return "unknown format"
    if isinstance(error, Image.DecompressionBombError):
        return "too many pixels"
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror.lower()
    return "damaged or truncated"


def _files_below(folder: Path) -> Iterator[Path]:
    """Yields all files below a folder, unsorted; follows links to folders and lists each once."""
    visited = set()  # a link may point to one of its parent folders
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = Path(parent).resolve()
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        yield from (Path(parent, name) for name in names)

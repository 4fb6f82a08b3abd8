"""Image files of folders, and their upright RGB pixels."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError
from torch import Tensor

from eulerlora.errors import ImageError
from eulerlora.preprocess import upright_rgb

EXTENSIONS = (".jpeg", ".jpg", ".png", ".webp")


def is_image_name(name: str) -> bool:
    """True if the file extension is that of a supported image format."""
    return name.lower().endswith(EXTENSIONS)


def image_files(folder: Path) -> list[Path]:
    """Returns all image files below a folder, sorted; follows links to folders."""
    return sorted(path for path in _files_below(folder) if is_image_name(path.name))


def read_pixels(file: Path | BinaryIO, name: str) -> Tensor:
    """Returns (3, height, width) uint8, upright RGB.

    Raises ImageError, with a message that begins with `name`.
    """
    try:
        with Image.open(file) as image:
            return upright_rgb(image).pixels
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

"""Image files of folders, and the upright RGB pixels in them."""

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
    """Whether a file's extension is that of a supported image format."""
    return name.lower().endswith(EXTENSIONS)


def image_files(folder: Path) -> list[Path]:
    """All image files below a folder, sorted; linked folders are followed."""
    return sorted(_files_below(folder))


def read_pixels(file: Path | BinaryIO, name: str) -> Tensor:
    """(3, height, width) uint8, upright RGB. Raises ImageError, which begins with `name`."""
    try:
        with Image.open(file) as image:
            return upright_rgb(image).pixels
    except UnidentifiedImageError as error:  # its own words would show a memory address
        raise ImageError(f"{name}: cannot be opened as an image (of no known format)") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ImageError(f"{name}: cannot be opened as an image ({error})") from error
    except ImageError as error:
        raise ImageError(f"{name}: {error}") from error


def _files_below(folder: Path) -> Iterator[Path]:
    seen = set()  # a link may lead back to a folder above it
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = Path(parent).resolve()
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (Path(parent, name) for name in names if is_image_name(name))

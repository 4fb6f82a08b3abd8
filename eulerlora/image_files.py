"""Image files of folders, and the upright RGB pixels in them."""

from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError
from torch import Tensor

from eulerlora.errors import ImageError
from eulerlora.folders import files_below
from eulerlora.preprocess import upright_rgb

EXTENSIONS = (".jpeg", ".jpg", ".png", ".webp")


def is_image_name(name: str) -> bool:
    """Whether a file's extension is that of a supported image format."""
    return name.lower().endswith(EXTENSIONS)


def image_files(folder: Path) -> list[Path]:
    """All image files below a folder, sorted; linked folders are followed."""
    return sorted(path for path in files_below(folder) if is_image_name(path.name))


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

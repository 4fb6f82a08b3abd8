"""Image files in folders and tar archives, by their relative names."""

import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from torch import Tensor

from eulerlora.errors import DataError, ImageError
from eulerlora.image_files import EXTENSIONS, image_files, is_image_name, read_pixels

Source = Path | bytes
"""Where an image's encoded bytes are: in a file, or already in memory."""


def list_images(place: Path) -> dict[str, Source]:
    """All image files below a folder or inside a tar archive, by relative name, sorted.

    A folder's files stay on disk; an archive is read into memory in its encoded form.
    Raises DataError where the place is missing, unreadable or without images.
    """
    if place.is_dir():
        found: dict[str, Source] = {
            file.relative_to(place).as_posix(): file for file in image_files(place)
        }
    elif place.is_file():
        found = dict(sorted(_read_archive(place).items()))
    else:
        raise DataError(f"{place}: no such folder or archive")
    if not found:
        raise DataError(f"{place}: holds no images ({', '.join(EXTENSIONS)})")
    return found


def _read_archive(path: Path) -> Mapping[str, bytes]:
    try:
        with tarfile.open(path) as archive:
            return {
                member.name.removeprefix("./"): file.read()
                for member in archive
                if is_image_name(member.name) and (file := archive.extractfile(member)) is not None
            }
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{path}: not a readable tar archive ({error})") from error


def read_image(name: str, source: Source) -> Tensor:
    """(3, height, width) uint8, upright RGB. Raises DataError, naming the image."""
    try:
        return read_pixels(BytesIO(source) if isinstance(source, bytes) else source, name)
    except ImageError as error:
        raise DataError(str(error)) from error

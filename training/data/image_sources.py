"""Images in folders and tar archives, by their relative names, and images already decoded."""

import tarfile
import zlib
from collections.abc import Iterator
from io import BytesIO
from lzma import LZMAError
from pathlib import Path

from torch import Tensor

from eulerlora.errors import DataError, ImageError
from eulerlora.image_files import EXTENSIONS, image_files, is_image_name, read_pixels

Encoded = Path | bytes
"""An image file on disk, or its bytes in memory."""

Source = Encoded | Tensor
"""Where an image is: encoded, or decoded as (3, height, width) uint8, upright RGB."""


def encoded_images(place: Path) -> Iterator[tuple[str, Encoded]]:
    """Names and image files below a folder, or names and bytes in the order of a tar archive.

    An archive is read as a stream. Raises DataError where the place is missing or unreadable.
    """
    if place.is_dir():
        yield from ((file.relative_to(place).as_posix(), file) for file in image_files(place))
    elif place.is_file():
        yield from _archived_images(place)
    else:
        raise no_place(place)


def list_images(place: Path) -> dict[str, Source]:
    """All image files below a folder or inside a tar archive, by relative name, sorted.

    A folder's files stay on disk; an archive is read into memory in its encoded form.
    Raises DataError where the place is missing, unreadable or without images.
    """
    found: dict[str, Source] = dict(sorted(encoded_images(place)))
    if not found:
        raise no_images(place)
    return found


def no_place(place: Path) -> DataError:
    """What is wrong where there is neither a folder nor an archive."""
    return DataError(f"{place}: no such folder or archive")


def no_images(place: Path) -> DataError:
    """What is wrong with a place in which there is no image."""
    return DataError(f"{place}: holds no images ({', '.join(EXTENSIONS)})")


def _archived_images(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if is_image_name(member.name) and (file := archive.extractfile(member)) is not None:
                    yield member.name.removeprefix("./"), file.read()
    except (tarfile.TarError, OSError, EOFError, LZMAError, zlib.error) as error:
        raise DataError(f"{path}: not a readable tar archive ({error})") from error


def read_image(name: str, source: Source) -> Tensor:
    """(3, height, width) uint8, upright RGB. Raises DataError, naming the image."""
    if isinstance(source, Tensor):
        return source
    try:
        return read_pixels(BytesIO(source) if isinstance(source, bytes) else source, name)
    except ImageError as error:
        raise DataError(str(error)) from error

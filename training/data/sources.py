"""Images in folders and tar archives, by relative name; decoding; unusable images."""

import os
import sys
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from lzma import LZMAError
from pathlib import Path
from typing import Protocol

from torch import Tensor

from eulerlora.errors import DataError, ImageError
from eulerlora.images.files import EXTENSIONS, image_files, is_image_name
from eulerlora.images.files import read_image as open_image
from eulerlora.images.preprocess import Conversion, RgbImage
from eulerlora.printable import printable
from training.data.progress import track

Encoded = Path | bytes
"""An image file on disk, or its bytes in memory."""

Source = Encoded | Tensor | Callable[[], Tensor]
"""An encoded image, a decoded one or a function that makes it: (3, height, width) uint8, RGB."""

Decoded = Tensor | str
"""A decoded image, or the reason why it cannot be decoded."""

OnBad = Callable[[str, str], None]
"""(name, reason) -> None, to skip an unusable image or row; or raises DataError."""

DECODE_AHEAD = 64  # images


class Skipped(Protocol):
    """A set of images with the reasons, by name, why others were skipped."""

    @property
    def skipped(self) -> Mapping[str, str]: ...


def encoded_images(path: Path) -> Iterator[tuple[str, Encoded]]:
    """Yields names and files of a folder, or names and bytes of a tar archive in its order.

    An archive is read as a stream. Raises DataError for a missing or unreadable path.
    """
    if path.is_dir():
        yield from ((file.relative_to(path).as_posix(), file) for file in image_files(path))
    elif path.is_file():
        yield from _archived_images(path)
    else:
        raise missing_path(path)


def list_images(path: Path) -> dict[str, Source]:
    """Returns all image files of a folder or tar archive by relative name, sorted.

    A folder's files stay on disk; an archive is read into memory in encoded form. Raises
    DataError for a path that is missing, unreadable or without images.
    """
    images: dict[str, Source] = dict(sorted(encoded_images(path)))
    if not images:
        raise no_images(path)
    return images


def missing_path(path: Path) -> DataError:
    """Returns the error for a path that does not exist."""
    return DataError(f"{path}: expected a folder or tar archive, got no such file")


def no_images(path: Path) -> DataError:
    """Returns the error for a folder or archive without images."""
    return DataError(f"{path}: expected images ({', '.join(EXTENSIONS)}), got no images")


def _archived_images(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if is_image_name(member.name) and (file := archive.extractfile(member)) is not None:
                    yield member.name.removeprefix("./"), file.read()
    except (tarfile.TarError, OSError, EOFError, LZMAError, zlib.error) as error:
        raise DataError(f"{path}: expected a readable tar archive ({type(error).__name__})") from (
            error
        )


def read_image(name: str, source: Source) -> Tensor:
    """Returns (3, height, width) uint8, upright sRGB. Raises DataError with the image's name."""
    if isinstance(source, Tensor):
        return source
    if not isinstance(source, Path | bytes):
        return source()
    return _rgb_image(name, source).pixels


def _rgb_image(name: str, source: Encoded) -> RgbImage:
    try:
        return open_image(BytesIO(source) if isinstance(source, bytes) else source, name)
    except ImageError as error:
        raise DataError(str(error)) from error


def decode_all(path: Path) -> Iterator[tuple[str, Decoded]]:
    """Yields the name and the decoded form of every image, in the order of `encoded_images`.

    Worker threads decode ahead; long work shows its progress. Raises DataError for a missing or
    unreadable path.
    """
    yield from track(_decode_in_threads(encoded_images(path)), f"decoding {path.name}", "images")


def _decode_in_threads(images: Iterable[tuple[str, Encoded]]) -> Iterator[tuple[str, Decoded]]:
    pending: deque[Future[tuple[str, Decoded]]] = deque()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, source in images:
            pending.append(pool.submit(_decode, name, source))
            if len(pending) > DECODE_AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _decode(name: str, source: Encoded) -> tuple[str, Decoded]:
    """Returns the name with the pixels or the reason. Reports a colour profile that is ignored."""
    try:
        image = _rgb_image(name, source)
    except DataError as error:
        return name, str(error).removeprefix(f"{name}: ")
    for warning in image.warnings:
        if warning.code is Conversion.PROFILE_IGNORED:
            print(printable(f"warning: {name}: {warning.message}"), file=sys.stderr)
    return name, image.pixels


def refuse(name: str, reason: str) -> None:
    """Raises DataError for an unusable image; an OnBad that allows none."""
    raise DataError(f"{name}: {reason}; use --skip-bad to skip unusable images")


def report_skipped(*sets: Skipped) -> None:
    """Lists the skipped images of all sets on stderr, with reasons; prints nothing if none."""
    skipped = {name: reason for images in sets for name, reason in images.skipped.items()}
    if skipped:
        noun = "image" if len(skipped) == 1 else "images"
        print(f"skipped {len(skipped):,} {noun}:", file=sys.stderr)
    for name, reason in skipped.items():
        print(f"  {name}: {reason}", file=sys.stderr)

"""Selection of the image files of a triage run."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from eulerlora_client.errors import ImageFilesError

EXTENSIONS = (
    ".avif", ".bmp", ".dcm", ".dicom", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jpeg",
    ".jpg", ".png", ".svg", ".tif", ".tiff", ".webp",
)  # fmt: skip
"""Extensions of images. All of them are sent, so that none is left out; the service decides which
formats it reads."""


@dataclass(frozen=True)
class FileSelection:
    """The distinct files of a run, and the number of other files in its folders."""

    files: tuple[Path, ...]
    skipped: int


def select_files(paths: Iterable[Path]) -> FileSelection:
    """Returns the given files, and all files with an image extension below the given folders.

    The order is that of the paths; files of a folder are sorted. Raises ImageFilesError if a
    folder cannot be listed, or if there is no file.
    """
    selected: dict[str, Path] = {}
    skipped = 0
    for path in paths:
        files = sorted(_files_below(path)) if path.is_dir() else [path]
        for file in files:
            if file == path or file.suffix.lower() in EXTENSIONS:
                selected.setdefault(os.path.abspath(file), file)  # noqa: PTH100 - keeps links
            else:
                skipped += 1
    if not selected:
        extensions = " ".join(EXTENSIONS)
        raise ImageFilesError(f"expected image files ({extensions}), got {skipped} other files")
    return FileSelection(tuple(selected.values()), skipped)


def _files_below(folder: Path) -> Iterator[Path]:
    """Yields all files below a folder; linked folders are followed, each is listed once."""
    visited = set()  # a link may lead to a folder above it
    for parent, folders, names in os.walk(folder, onerror=_raise_unlistable, followlinks=True):
        real = Path(parent).resolve()
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        yield from (Path(parent, name) for name in names)


def _raise_unlistable(error: OSError) -> NoReturn:
    raise ImageFilesError(f"{error.filename}: cannot be listed ({error.strerror})") from error

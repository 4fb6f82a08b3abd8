"""Which files a triage run is about, and in which order."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from eulerlora.errors import DataError
from eulerlora.folders import files_below

READ_BY_SERVICE = (".jpeg", ".jpg", ".png", ".webp")
OTHER_IMAGES = (
    ".avif", ".bmp", ".dcm", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".svg", ".tif",
    ".tiff",
)  # fmt: skip
"""Pictures too: nobody is to believe that the service has seen one which it cannot read."""


@dataclass(frozen=True)
class Considered:
    """The files of a run, each once, and how many others lie in its folders."""

    files: tuple[Path, ...]
    others: int


def considered(places: Iterable[Path]) -> Considered:
    """Files as they are named, and of folders all below them with an image's extension, sorted.

    In the order of the places. Raises DataError for a folder that cannot be listed, and where
    there is no file at all.
    """
    found: dict[str, Path] = {}
    others = 0
    for place in places:
        files = sorted(files_below(place, _not_listed)) if place.is_dir() else [place]
        for file in files:
            if file == place or file.suffix.lower() in (*READ_BY_SERVICE, *OTHER_IMAGES):
                found.setdefault(os.path.abspath(file), file)  # noqa: PTH100 - links stay links
            else:
                others += 1
    if not found:
        raise DataError(
            f"wanted images ({' '.join(READ_BY_SERVICE)}); found {others} other files and none"
        )
    return Considered(tuple(found.values()), others)


def _not_listed(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be listed ({error.strerror})") from error

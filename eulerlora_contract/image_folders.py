"""Image files below folders: which ones a run takes, and which other files it leaves out."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NoReturn

from eulerlora_contract.errors import ImageFilesError
from eulerlora_contract.image_formats import DICOM_KIND, SNIFFED_BYTES, known_kind, sniff

_IMAGE_EXTENSIONS = (
    ".avif", ".bmp", ".dcm", ".dicom", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jpeg",
    ".jpg", ".png", ".svg", ".tif", ".tiff", ".webp",
)  # fmt: skip
"""Extensions of images. All of them are sent, so that none is left out; the service decides which
formats it reads."""


_SYSTEM_NAMES = {
    "__macosx", "__pycache__", "lost+found", "system volume information", "$recycle.bin",
    "#recycle", "#snapshot", "@eadir", "@tmp", "@recycle", "@recently-snapshot", "@sharebin",
    "thumbs.db", "desktop.ini", "dicomdir",
}  # fmt: skip
"""Files and folders that operating systems and network drives make, and the index of DICOM media,
in lower case."""
_RESOURCE_FORKS = "._*"
"""What macOS writes beside the files of a foreign drive."""


def hidden_name(parts: Iterable[str]) -> str | None:
    """The first part of a relative path that is hidden or of a system; None if none is."""
    for part in parts:
        if part.startswith("._"):
            return _RESOURCE_FORKS
        if part.startswith(".") or part.lower() in _SYSTEM_NAMES:
            return part
    return None


@dataclass(frozen=True)
class FileSelection:
    """The distinct files of a run.

    Attributes:
        others: The other files of its folders.
        hidden: Number of files with an image extension that are left out, by their hidden or system
            folder.
    """

    files: tuple[Path, ...]
    others: tuple[Path, ...]
    hidden: Mapping[str, int]

    @property
    def notes(self) -> list[str]:
        """What is left out, in a line for each reason."""
        return left_out_notes(Counter(file_kind(file) for file in self.others), self.hidden)


def list_files(
    paths: Iterable[str | os.PathLike[str]], extensions: Sequence[str], by_content: bool = False
) -> FileSelection:
    """Lists the given files, and all files with such an extension below the given folders.

    The order is that of the paths; files of a folder are sorted. Hidden files and those of systems
    are left out. With `by_content`, a file of a folder with another extension or without one is
    listed too if it begins like a JPEG, PNG or WebP; if `extensions` have .dcm, like a DICOM file;
    and if they have .heic, like a photograph of another format, such as RAW.

    Raises:
        ImageFilesError: For a folder that cannot be listed.
    """
    selected: dict[str, Path] = {}
    others: list[Path] = []
    hidden: Counter[str] = Counter()
    for path in map(Path, paths):
        if not path.is_dir():
            selected.setdefault(os.path.abspath(path), path)  # noqa: PTH100 - keeps links
            continue
        for file in sorted(_files_below(path)):
            name = hidden_name(file.relative_to(path).parts)
            is_image = file.name.lower().endswith(tuple(extensions))
            if name is not None:
                hidden[name] += is_image
            elif is_image or (by_content and _has_image_content(file, extensions)):
                selected.setdefault(os.path.abspath(file), file)  # noqa: PTH100
            else:
                others.append(file)
    return FileSelection(tuple(selected.values()), tuple(others), +hidden)


def select_files(
    paths: Iterable[str | os.PathLike[str]], extensions: Sequence[str] = _IMAGE_EXTENSIONS
) -> FileSelection:
    """As `list_files` with `by_content`, but at least one file.

    Raises:
        ImageFilesError: As `list_files`, and if there is no file.
    """
    selection = list_files(paths, extensions, by_content=True)
    if not selection.files:
        found = "".join(f"; {note}" for note in selection.notes)
        raise ImageFilesError(f"expected image files ({' '.join(extensions)}), got none{found}")
    return selection


def _has_image_content(file: Path, extensions: Sequence[str]) -> bool:
    start = _first_bytes(file) or b""
    if sniff(start) is not None:
        return True
    kind = known_kind(start)
    return (".dcm" in extensions and kind is DICOM_KIND) or (
        ".heic" in extensions and kind is not None and kind.is_photograph
    )


def left_out_notes(others: Mapping[str, int], hidden: Mapping[str, int]) -> list[str]:
    """What is left out of a folder: the numbers of files of other kinds, and of hidden pictures."""
    notes = []
    if others:
        files = "1 file of another kind is" if sum(others.values()) == 1 else (
            f"{sum(others.values()):,} files of other kinds are"
        )  # fmt: skip
        convertible = any(f"({extension})" in kind for kind in others for extension in CONVERTED)
        hint = "; `eulerlora convert` makes PNG files of BMP and TIFF" if convertible else ""
        notes.append(f"{files} left out: {_counts(others)}{hint}")
    if hidden:
        notes.append(f"hidden files and those of systems are left out: {_counts(hidden)}")
    return notes


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in sorted(counts.items()))


def file_kind(file: Path) -> str:
    """The kind of a file: by its first bytes, or by its extension."""
    if not file.is_file():
        return "broken link" if file.is_symlink() else "pipe or device"
    start = _first_bytes(file)
    return "unreadable file" if start is None else content_kind(file.name, start)


def _first_bytes(file: Path) -> bytes | None:
    """None for a file that cannot be read; a pipe is not waited for."""
    with suppress(OSError):
        if file.is_file():
            with file.open("rb") as opened:
                return opened.read(SNIFFED_BYTES)
    return None


CONVERTED = {".bmp": "BMP", ".tif": "TIFF", ".tiff": "TIFF"}
"""Formats that `eulerlora convert` reads, by extension; a RAW photograph may begin like a TIFF."""


def content_kind(name: str, start: bytes) -> str:
    """The kind of a file by its first SNIFFED_BYTES bytes and the extension of its name."""
    extension = PurePath(name).suffix.lower() or "without an extension"
    known = known_kind(start)
    kind: str | None = sniff(start)
    if known is not None:
        kind = known.name.removeprefix("an ").removeprefix("a ")
    return extension if kind is None else f"{kind} ({extension})"


def _files_below(folder: Path) -> Iterator[Path]:
    """Unsorted; links to folders are followed, and each folder is listed once."""

    def refuse(error: OSError) -> NoReturn:
        raise ImageFilesError(f"{error.filename}: cannot be listed ({error.strerror})") from error

    visited = set()  # a link may lead to a folder above it
    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = Path(parent).resolve()
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        yield from (Path(parent, name) for name in names)

"""The images of a folder or archive, decoded once into one memory-mapped file.

    CACHE/pixels/PATH/STATE/pixels.bin     (3, height, width) uint8 of all images, concatenated
    CACHE/pixels/PATH/STATE/index.json     names, sizes, offsets, digests; names and reasons of bad
                                           images; what else the folder has

CACHE is the folder in EULERLORA_CACHE, or the user's cache folder. STATE is a digest of the
names, sizes and times of all files, so that a changed folder is decoded again. Pixels keep their
native resolution, because training's random views start from it.
"""

import hashlib
import json
import os
import shutil
import stat
import sys
import tarfile
import zipfile
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO

import torch
from platformdirs import user_cache_path
from torch import Tensor

from eulerlora.cpu import available_cpus
from eulerlora.images.decode import check_file_size, local_limits, max_file_bytes
from eulerlora.images.files import EXTENSIONS, RAISED_BY, is_image_name
from eulerlora_contract.answers import IGNORED_PARTS
from eulerlora_contract.errors import DataError, ImageSizeError
from eulerlora_contract.image_folders import (
    FileSelection,
    content_kind,
    file_kind,
    hidden_name,
    left_out_notes,
    list_files,
)
from eulerlora_contract.image_formats import SNIFFED_BYTES
from eulerlora_contract.output_files import lock
from eulerlora_contract.printable import printable
from eulerlora_contract.progress import track
from training.data.copies import oriented_digest
from training.data.dataset import LABELS
from training.data.images import Encoded, ImageSource, decode_source

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
"""Suffixes of archives; an archive with another one is read too, by its content."""
_FORMAT = 6
_PIXELS, INDEX = "pixels.bin", "index.json"
_MIN_FREE_BYTES = 2**29  # of the cache's disk, left to other programs

_Reason = str
"""Why a file cannot be read or decoded."""


@dataclass(frozen=True)
class _LeftOut:
    """What a folder or archive has beside its images; counted while it is read.

    Attributes:
        others: Number of files by kind.
        hidden: Number of images by the hidden or system folder that they are in.
    """

    others: Counter[str] = field(default_factory=Counter)
    hidden: Counter[str] = field(default_factory=Counter)

    @property
    def notes(self) -> list[str]:
        return left_out_notes(self.others, self.hidden)


@dataclass(frozen=True)
class DecodedImages:
    """The images of a folder or archive by name.

    Attributes:
        digests: `oriented_digest` of good images.
    """

    sources: Mapping[str, ImageSource]
    bad: Mapping[str, _Reason]
    digests: Mapping[str, int] = field(default_factory=dict)
    left_out: _LeftOut = field(default_factory=_LeftOut)

    @property
    def names(self) -> set[str]:
        return {*self.sources, *self.bad}


def decoded_images(path: Path) -> DecodedImages:
    """The images of a folder or archive (tar or zip), sorted by name; decodes them if not cached.

    Hidden and system folders are left out. The pixels are mapped from a file: DataLoader's forked
    workers share them, but a spawned process cannot receive them. The cache is in the folder
    EULERLORA_CACHE, or in the user's cache folder; if it cannot be used, this warns on stderr,
    checks every image and returns them encoded.

    Raises:
        DataError: For a path that is missing or unreadable.
    """
    if not (path.is_dir() or path.is_file()):  # opening a pipe might never end
        found = "a pipe or device" if path.exists() else "no such file"
        raise DataError(f"{path}: expected a folder or archive, got {found}")
    real = path.resolve()
    cache = Path(os.environ.get("EULERLORA_CACHE") or user_cache_path("eulerlora"))
    folder = cache / "pixels" / f"{printable(real.name)}-{_digest(str(real))}"
    state = folder / _digest(*_file_facts(path))
    cached = _open(state)
    if cached is not None:
        return cached
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as file:
            _wait_for(file, path)
            return _open(state) or _build(path, state)
    except OSError as error:
        print(f"{path}: not cached, decoding for every use ({error})", file=sys.stderr)
        return _checked(path)


def _wait_for(file: IO[str], path: Path) -> None:
    if lock(file.fileno()) is False:
        print(f"{path}: waiting for another program that decodes it", file=sys.stderr)
        lock(file.fileno(), waits=True)


def _file_facts(path: Path) -> Iterator[object]:
    """Yields what distinguishes two states of a path, without reading contents."""
    yield _FORMAT
    yield local_limits()
    selection = _listed(path) if path.is_dir() else FileSelection((path,), (), {})
    yield dict(selection.hidden)
    for file in (*selection.files, *selection.others):
        try:
            stat = file.stat()
        except OSError as error:  # such as a broken link
            yield str(file), error.errno
        else:
            yield str(file), stat.st_size, stat.st_mtime_ns, stat.st_mode


def _digest(*facts: object) -> str:
    sha256 = hashlib.sha256()
    for fact in facts:
        sha256.update(f"{fact!r}\n".encode(errors="surrogateescape"))
    return sha256.hexdigest()[:16]


def _open(state: Path) -> DecodedImages | None:
    try:
        index = json.loads((state / INDEX).read_text(encoding="utf-8"))
        # private pages: writable without a warning, and never written back to the file
        pixels = (
            torch.from_file(
                str(state / _PIXELS), shared=False, size=index["bytes"], dtype=torch.uint8
            )
            if index["bytes"]
            else torch.empty(0, dtype=torch.uint8)
        )
        sources: dict[str, ImageSource] = {
            name: pixels[offset : offset + 3 * height * width].view(3, height, width)
            for name, (offset, height, width) in index["images"].items()
        }
        left_out = _LeftOut(Counter(index["others"]), Counter(index["hidden"]))
        return DecodedImages(sources, index["bad"], index["digests"], left_out)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        return None


def _build(path: Path, state: Path) -> DecodedImages:
    """Decodes a path into the folder `state` atomically, and deletes older states."""
    partial = state.with_name("partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        left_out = _LeftOut()
        _write(partial, _decode_all(path, _encoded_images(path, left_out)), path, left_out)
        for older in state.parent.iterdir():
            if older.is_dir() and older != partial:
                shutil.rmtree(older)
        partial.rename(state)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    built = _open(state)
    if built is None:
        raise OSError(f"{state} cannot be read back")
    return built


def _write(
    folder: Path, decoded: Iterable[tuple[str, Tensor | _Reason]], path: Path, left_out: _LeftOut
) -> None:
    images: dict[str, tuple[int, int, int]] = {}
    digests: dict[str, int] = {}
    bad: dict[str, _Reason] = {}
    offset = 0
    with (folder / _PIXELS).open("wb") as file:
        for name, pixels in decoded:
            if isinstance(pixels, str):
                bad[name] = pixels
                continue
            if shutil.disk_usage(folder).free < _MIN_FREE_BYTES + pixels.numel():
                raise OSError(f"expected {_MIN_FREE_BYTES >> 20} MB of free space in {folder}")
            file.write(pixels.numpy().tobytes())
            images[name] = (offset, *pixels.shape[1:])
            digests[name] = oriented_digest(pixels)
            offset += pixels.numel()
    index = {
        "path": str(path.resolve()),
        "bytes": offset,
        "images": dict(sorted(images.items())),
        "digests": digests,
        "bad": dict(sorted(bad.items())),
        "others": left_out.others,
        "hidden": left_out.hidden,
    }
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")


def _checked(path: Path) -> DecodedImages:
    """The images in encoded form; decodes each once to find the bad ones."""
    left_out = _LeftOut()
    sources = dict(sorted(_encoded_images(path, left_out)))
    bad: dict[str, _Reason] = {}
    digests: dict[str, int] = {}
    for name, pixels in _decode_all(path, sources.items()):
        if isinstance(pixels, str):
            bad[name] = pixels
        else:
            digests[name] = oriented_digest(pixels)
    good = {
        name: source
        for name, source in sources.items()
        if not isinstance(source, str) and name in digests
    }
    return DecodedImages(good, bad, digests, left_out)


def _listed(folder: Path) -> FileSelection:
    return list_files([folder], EXTENSIONS)


def _encoded_images(path: Path, left_out: _LeftOut) -> Iterator[tuple[str, Encoded | _Reason]]:
    """Yields names and files of a folder, or names and bytes of an archive in its order.

    A link to nothing, a pipe or a device has the reason why it cannot be read. What is no image is
    counted in `left_out`.

    Raises:
        DataError: The archive is unreadable.
    """
    if path.is_dir():
        selection = _listed(path)
        left_out.others.update(map(file_kind, selection.others))
        left_out.hidden.update(selection.hidden)
        for file in selection.files:
            name = file.relative_to(path).as_posix()
            yield name, file if file.is_file() else f"expected a file, got a {file_kind(file)}"
        return
    try:
        for member in _members(path):
            hidden = hidden_name(PurePosixPath(member.name).parts)
            if hidden is not None:
                left_out.hidden.update([hidden] * is_image_name(member.name))
            elif is_image_name(member.name):
                yield member.name, _image(member)
            else:
                left_out.others.update([_member_kind(member)])
    except (
        tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, LZMAError, zlib.error,
        NotImplementedError, UnicodeDecodeError,
    ) as error:  # fmt: skip
        raise DataError(f"{path}: expected a readable archive ({type(error).__name__})") from error


@dataclass(frozen=True)
class _Member:
    """A file in an archive, to be read before the next one is taken.

    Attributes:
        size: Unpacked, in bytes, as the archive states it.
        read: Its first bytes, at most this number; or why there are none.
    """

    name: str
    size: int
    read: Callable[[int], bytes | _Reason]


_ZIP_STARTS = (b"PK\3\4", b"PK\5\6")  # of a file, and of an archive without one


def _members(path: Path) -> Iterator[_Member]:
    """Yields the files of an archive in its order; a tar archive is read as a stream."""
    with path.open("rb") as file:
        is_zip = file.read(4) in _ZIP_STARTS
    if is_zip:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                name = info.filename.replace("\\", "/").removeprefix("./")
                if not name.endswith("/"):
                    yield _Member(name, info.file_size, partial(_read_of_zip, archive, info))
        return
    with tarfile.open(path) as stream:
        for member in stream:
            name = member.name.removeprefix("./")
            if not member.isdir():
                yield _Member(name, member.size, partial(_read_of_tar, stream, member))
        if not _ends_as_marked(stream):
            raise DataError(f"{path}: expected a whole tar archive, got one damaged or cut off")


def _ends_as_marked(archive: tarfile.TarFile) -> bool:
    """Whether zeros end an archive; tarfile also ends it at a damaged header."""
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    return archive.fileobj.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)


def _read_of_tar(archive: tarfile.TarFile, member: tarfile.TarInfo, size: int) -> bytes | _Reason:
    try:
        content = archive.extractfile(member)
    except (KeyError, RecursionError):  # the link leads to nothing, or to itself
        return "expected a file, got a broken link"
    return "expected a file, got a pipe or device" if content is None else content.read(size)


def _read_of_zip(archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int) -> bytes | _Reason:
    kind = stat.S_IFMT(info.external_attr >> 16)  # of Unix; 0 from other systems
    if kind not in (0, stat.S_IFREG):
        return f"expected a file, got a {'link' if kind == stat.S_IFLNK else 'pipe or device'}"
    if info.flag_bits & 1:
        return "expected a file without a password, got a locked one"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # zipfile unpacks others without a limit
        return "expected a stored or deflated file, got a file of another compression"
    try:
        with archive.open(info) as content:
            return content.read(size)
    except (zipfile.BadZipFile, zlib.error, EOFError):
        return "expected a whole file, got a damaged one"


def _image(member: _Member) -> Encoded | _Reason:
    limits = local_limits()
    try:
        check_file_size(member.size, limits)  # before it is unpacked
        content = member.read(max_file_bytes(limits) + 1)  # of another member, for a link
        check_file_size(len(content), limits)
    except ImageSizeError as error:
        return f"{error}; {RAISED_BY}"
    return content


def _member_kind(member: _Member) -> str:
    """As `file_kind`, but a table of labels, which is not read, has its name as its kind."""
    if PurePosixPath(member.name).name.lower() == LABELS:
        return LABELS
    content = member.read(SNIFFED_BYTES)
    if isinstance(content, str):
        return content.partition("got a ")[2]
    return content_kind(member.name, content)


def _decode_all(
    path: Path, encoded: Iterable[tuple[str, Encoded | _Reason]]
) -> Iterator[tuple[str, Tensor | _Reason]]:
    """Yields the name and the decoded form of every image, in their order, or why it has none.

    Worker threads decode ahead; long work shows its progress, with the name of `path`.
    """

    def decoded() -> Iterator[tuple[str, Tensor | _Reason]]:
        pending: deque[Future[tuple[str, Tensor | _Reason]]] = deque()
        with ThreadPoolExecutor(available_cpus()) as pool:
            for name, source in encoded:
                pending.append(pool.submit(_decode, name, source))
                if len(pending) > 64:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()

    yield from track(decoded(), f"decoding {path.name}", "images")


def _decode(name: str, source: Encoded | _Reason) -> tuple[str, Tensor | _Reason]:
    """Prints a warning for every part of the file that is ignored."""
    if isinstance(source, str):
        return name, source
    try:
        image = decode_source(name, source)
    except DataError as error:
        return name, str(error).removeprefix(f"{name}: ")
    for warning in image.warnings:
        if warning.code in IGNORED_PARTS:
            print(printable(f"warning: {name}: {warning.message}"), file=sys.stderr)
    return name, image.pixels

"""The images of a folder or archive, decoded once into one memory-mapped file.

    CACHE/pixels/PATH/STATE/pixels.bin     (3, height, width) uint8 of all images, concatenated
    CACHE/pixels/PATH/STATE/index.json     names, sizes, offsets; names and reasons of bad images

CACHE is the folder in EULERLORA_CACHE, or the user's cache folder. STATE is a digest of the
names, sizes and times of all files, so that a changed folder is decoded again. Pixels keep their
native resolution, because training's random views start from it.
"""

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tarfile
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path

import torch
from platformdirs import user_cache_path
from torch import Tensor

from eulerlora.cpu import available_cpus
from eulerlora.images.files import EXTENSIONS, image_files, is_image_name
from eulerlora_contract.answers import WarningCode
from eulerlora_contract.errors import DataError
from eulerlora_contract.printable import printable
from eulerlora_contract.progress import track
from training.data.images import Encoded, ImageSource, rgb_image

FORMAT = 4
PIXELS, INDEX = "pixels.bin", "index.json"
MIN_FREE_BYTES = 2**29  # of the cache's disk, left to other programs
DECODE_AHEAD = 64  # images

DecodeResult = Tensor | str
"""A decoded image, or the reason why it cannot be decoded."""


@dataclass(frozen=True)
class DecodedImages:
    """The images of a folder or archive by name; bad: the reason for each undecodable image."""

    sources: Mapping[str, ImageSource]
    bad: Mapping[str, str]


def decoded_images(path: Path) -> DecodedImages:
    """Returns the images of a folder or tar archive, sorted by name; decodes them if not cached.

    The pixels are mapped from a file: DataLoader's forked workers share them, but a spawned
    process cannot receive them. Without a usable cache it warns on stderr, checks every image and
    returns them encoded. Raises DataError for a path that is missing, unreadable or without
    images.
    """
    if not path.exists():
        raise DataError(f"{path}: expected a folder or tar archive, got no such file")
    real = path.resolve()
    folder = cache_folder() / "pixels" / f"{real.name}-{_digest(str(real))}"
    state = folder / _digest(*_file_facts(path))
    cached = _open(state)
    if cached is not None:
        return cached
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return _open(state) or _build(path, state)
    except OSError as error:
        print(f"{path}: not cached, decoding for every use ({error})", file=sys.stderr)
        return _checked(path)


def cache_folder() -> Path:
    """Returns the folder of reproducible files: EULERLORA_CACHE, or the user's cache folder."""
    return Path(os.environ.get("EULERLORA_CACHE") or user_cache_path("eulerlora"))


def _file_facts(path: Path) -> Iterator[object]:
    """Yields what distinguishes two states of a path, without reading contents."""
    yield FORMAT
    for file in image_files(path) if path.is_dir() else [path]:
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
        pixels = torch.from_file(
            str(state / PIXELS), shared=False, size=index["bytes"], dtype=torch.uint8
        )
        sources: dict[str, ImageSource] = {
            name: pixels[offset : offset + 3 * height * width].view(3, height, width)
            for name, (offset, height, width) in index["images"].items()
        }
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        return None
    return DecodedImages(sources, index["bad"])


def _build(path: Path, state: Path) -> DecodedImages:
    """Decodes a path into the folder `state` atomically, and deletes older states."""
    partial = state.with_name("partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        _write(partial, decode_all(path), path)
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


def _write(folder: Path, decoded: Iterable[tuple[str, DecodeResult]], path: Path) -> None:
    images: dict[str, tuple[int, int, int]] = {}
    bad: dict[str, str] = {}
    offset = 0
    with (folder / PIXELS).open("wb") as file:
        for name, pixels in decoded:
            if isinstance(pixels, str):
                bad[name] = pixels
                continue
            if shutil.disk_usage(folder).free < MIN_FREE_BYTES + pixels.numel():
                raise OSError(f"expected {MIN_FREE_BYTES >> 20} MB of free space in {folder}")
            file.write(pixels.numpy().tobytes())
            images[name] = (offset, *pixels.shape[1:])
            offset += pixels.numel()
    index = {
        "path": str(path.resolve()),
        "bytes": offset,
        "images": dict(sorted(images.items())),
        "bad": dict(sorted(bad.items())),
    }
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")


def _checked(path: Path) -> DecodedImages:
    """Returns the images in encoded form; decodes each once to find the bad ones."""
    sources = list_images(path)
    bad = {name: pixels for name, pixels in decode_all(path) if isinstance(pixels, str)}
    good = {name: source for name, source in sources.items() if name not in bad}
    return DecodedImages(good, dict(sorted(bad.items())))


def encoded_images(path: Path) -> Iterator[tuple[str, Encoded]]:
    """Yields names and files of a folder, or names and bytes of a tar archive in its order.

    An archive is read as a stream. Raises DataError for an unreadable archive.
    """
    if path.is_dir():
        yield from ((file.relative_to(path).as_posix(), file) for file in image_files(path))
        return
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if is_image_name(member.name) and (file := archive.extractfile(member)) is not None:
                    yield member.name.removeprefix("./"), file.read()
    except (tarfile.TarError, OSError, EOFError, LZMAError, zlib.error) as error:
        raise DataError(f"{path}: expected a readable tar archive ({type(error).__name__})") from (
            error
        )


def list_images(path: Path) -> dict[str, ImageSource]:
    """Returns all image files of a folder or tar archive by relative name, sorted.

    A folder's files stay on disk; an archive is read into memory in encoded form.
    """
    return dict(sorted(encoded_images(path)))


def decode_all(path: Path) -> Iterator[tuple[str, DecodeResult]]:
    """Yields the name and the decoded form of every image, in the order of `encoded_images`.

    Worker threads decode ahead; long work shows its progress. Raises DataError for a path that is
    unreadable or without images.
    """
    empty = True
    for image in track(_decode_in_threads(encoded_images(path)), f"decoding {path.name}", "images"):
        yield image
        empty = False
    if empty:
        raise DataError(f"{path}: expected images ({', '.join(EXTENSIONS)}), got no images")


def _decode_in_threads(images: Iterable[tuple[str, Encoded]]) -> Iterator[tuple[str, DecodeResult]]:
    pending: deque[Future[tuple[str, DecodeResult]]] = deque()
    with ThreadPoolExecutor(available_cpus()) as pool:
        for name, source in images:
            pending.append(pool.submit(_decode, name, source))
            if len(pending) > DECODE_AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _decode(name: str, source: Encoded) -> tuple[str, DecodeResult]:
    """Returns the name with the pixels or the reason. Reports a colour profile that is ignored."""
    try:
        image = rgb_image(name, source)
    except DataError as error:
        return name, str(error).removeprefix(f"{name}: ")
    for warning in image.warnings:
        if warning.code == WarningCode.PROFILE_IGNORED:
            print(printable(f"warning: {name}: {warning.message}"), file=sys.stderr)
    return name, image.pixels

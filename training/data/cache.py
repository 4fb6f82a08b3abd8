"""The images of a folder or archive, decoded once into one memory-mapped file.

    CACHE/pixels/PLACE/STATE/pixels.bin     (3, height, width) uint8 of one image after another
    CACHE/pixels/PLACE/STATE/index.json     names, sizes and offsets; what does not open, and why

CACHE is the folder that EULERLORA_CACHE names, or the user's cache folder. STATE stands for the
names, sizes and times of all files, so that a changed place is decoded anew. Pixels keep their
native resolution, at which training's random views are taken.
"""

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from platformdirs import user_cache_path
from torch import Tensor

from eulerlora.image_files import image_files
from training.data.decoding import decode_all
from training.data.image_sources import Source, list_images, no_images, no_place

FORMAT = 1
PIXELS, INDEX = "pixels.bin", "index.json"
FREE_BYTES = 2**29  # of the cache's disk, left to others


@dataclass(frozen=True)
class DecodedImages:
    """All images of a place by name, sorted; bad: why the others do not open, by name."""

    sources: Mapping[str, Source]
    bad: Mapping[str, str]


def decoded_images(place: Path) -> DecodedImages:
    """The images of a folder or tar archive; decoded now, or found decoded by an earlier call.

    The pixels are mapped from a file: DataLoader's forked workers share them, a spawned process
    cannot take them along. Where there can be no cache, a line says so; the images are then
    checked and stay encoded. Raises DataError where the place is missing, unreadable or without
    images.
    """
    if not place.exists():
        raise no_place(place)
    real = place.resolve()
    folder = cache_folder() / "pixels" / f"{real.name}-{_digest(str(real))}"
    state = folder / _digest(*_facts(place))
    found = _open(state)
    if found is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _exclusive(folder / "lock"):
            return _open(state) or _build(place, state)
    except OSError as error:
        print(f"{place}: decoded anew each time, as it cannot be cached ({error})", file=sys.stderr)
        return _checked(place)


def cache_folder() -> Path:
    """The folder for what can be made again: EULERLORA_CACHE, or the user's cache folder."""
    return Path(os.environ.get("EULERLORA_CACHE") or user_cache_path("eulerlora"))


def _facts(place: Path) -> Iterator[object]:
    """All that tells one state of a place from another, without reading what is in it."""
    yield FORMAT
    for file in image_files(place) if place.is_dir() else [place]:
        try:
            facts = file.stat()
        except OSError as error:  # such as a link that leads nowhere
            yield str(file), error.errno
        else:
            yield str(file), facts.st_size, facts.st_mtime_ns, facts.st_mode


def _digest(*facts: object) -> str:
    sha256 = hashlib.sha256()
    for fact in facts:
        sha256.update(f"{fact!r}\n".encode(errors="surrogateescape"))
    return sha256.hexdigest()[:16]


def _open(state: Path) -> DecodedImages | None:
    """What an earlier run decoded; None where there is nothing, or nothing whole."""
    try:
        index = json.loads((state / INDEX).read_text(encoding="utf-8"))
        # private pages: they may be written to without a warning, and never reach the file
        pixels = torch.from_file(
            str(state / PIXELS), shared=False, size=index["bytes"], dtype=torch.uint8
        )
        sources: dict[str, Source] = {
            name: pixels[offset : offset + 3 * height * width].view(3, height, width)
            for name, (offset, height, width) in index["images"].items()
        }
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        return None
    return DecodedImages(sources, index["bad"])


def _build(place: Path, state: Path) -> DecodedImages:
    """Decodes a place into `state`, which appears whole or not at all, and drops older states."""
    partial = state.with_name("partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        _write(partial, decode_all(place), place)
        for older in state.parent.iterdir():
            if older.is_dir() and older != partial:
                shutil.rmtree(older)
        partial.rename(state)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    found = _open(state)
    if found is None:
        raise OSError(f"{state} cannot be read back")
    return found


def _write(folder: Path, decoded: Iterable[tuple[str, Tensor | str]], place: Path) -> None:
    images: dict[str, tuple[int, int, int]] = {}
    bad: dict[str, str] = {}
    offset = 0
    with (folder / PIXELS).open("wb") as file:
        for name, pixels in decoded:
            if isinstance(pixels, str):
                bad[name] = pixels
                continue
            if shutil.disk_usage(folder).free < FREE_BYTES + pixels.numel():
                raise OSError(f"{FREE_BYTES >> 20} MB would not be left free in {folder}")
            file.write(pixels.numpy().tobytes())
            images[name] = (offset, *pixels.shape[1:])
            offset += pixels.numel()
    if not images and not bad:
        raise no_images(place)
    index = {
        "place": str(place.resolve()),
        "bytes": offset,
        "images": dict(sorted(images.items())),
        "bad": dict(sorted(bad.items())),
    }
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")


def _checked(place: Path) -> DecodedImages:
    """The images of a place, still encoded; each was decoded once to know whether it opens."""
    sources = list_images(place)
    bad = {name: pixels for name, pixels in decode_all(place) if isinstance(pixels, str)}
    good = {name: source for name, source in sources.items() if name not in bad}
    return DecodedImages(good, dict(sorted(bad.items())))


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Waits until no other process is in here with the same path."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

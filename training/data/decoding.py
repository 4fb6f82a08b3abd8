"""All images of a folder or archive decoded in threads, ahead of their turn."""

import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from torch import Tensor
from tqdm import tqdm

from eulerlora.errors import DataError
from training.data.image_sources import Encoded, encoded_images, read_image

AHEAD = 64  # images
LINE_EVERY_S = 10.0

Item = TypeVar("Item")


def decode_all(place: Path) -> Iterator[tuple[str, Tensor | str]]:
    """Names with (3, height, width) uint8, or with the reason why an image does not open.

    In the order of the folder or archive; long work shows its progress. Raises DataError where
    the place is missing or unreadable.
    """
    yield from _progress(_in_threads(encoded_images(place)), place.name)


def _in_threads(images: Iterable[tuple[str, Encoded]]) -> Iterator[tuple[str, Tensor | str]]:
    waiting: deque[Future[tuple[str, Tensor | str]]] = deque()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, source in images:
            waiting.append(pool.submit(_decode, name, source))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _decode(name: str, source: Encoded) -> tuple[str, Tensor | str]:
    try:
        return name, read_image(name, source)
    except DataError as error:
        return name, str(error).removeprefix(f"{name}: ")


def _progress(items: Iterable[Item], name: str) -> Iterator[Item]:
    """The items, with a bar where stderr is a terminal and with a line now and then elsewhere."""
    if sys.stderr.isatty():
        yield from tqdm(items, f"decode {name}", unit=" images", leave=False)
        return
    last = time.monotonic()
    for count, item in enumerate(items, start=1):
        yield item
        if time.monotonic() - last > LINE_EVERY_S:
            last = time.monotonic()
            print(f"{name}: {count:,} images decoded", flush=True)

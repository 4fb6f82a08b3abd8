"""The files below a folder, whatever is in them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path


def files_below(folder: Path, on_error: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """All files below a folder, in no order; linked folders are followed, each listed once.

    on_error: called for a folder that cannot be listed; without it such a folder is passed over.
    """
    seen = set()  # a link may lead back to a folder above it
    for parent, folders, names in os.walk(folder, onerror=on_error, followlinks=True):
        real = Path(parent).resolve()
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (Path(parent, name) for name in names)

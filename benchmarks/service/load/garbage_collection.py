"""Garbage collection of the benchmark process during a measurement."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def short_gc_pauses() -> Iterator[None]:
    """Excludes all present objects from garbage collection while the block runs.

    A full collection of the imported libraries would pause the clients for about 0.25 s.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()

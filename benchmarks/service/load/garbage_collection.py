"""This process's garbage collector, kept from holding up what is measured."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unhindered() -> Iterator[None]:
    """No long pauses of this process while the block runs: what is in memory already, libraries
    above all, is passed over; a look at all of it would take a quarter of a second.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()

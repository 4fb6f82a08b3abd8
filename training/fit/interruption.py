"""Ctrl-C that waits for the step under way."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """Whether an interruption was asked for."""

    asked = False


@contextmanager
def deferred_interruption() -> Iterator[Interruption]:
    """Within the block a first Ctrl-C is noted for the loop to see; a second one interrupts.

    Outside the main thread, where signals cannot be handled, nothing changes.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = signal.getsignal(signal.SIGINT)

    def note(_number: int, _frame: FrameType | None) -> None:
        interruption.asked = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, before)

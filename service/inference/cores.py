"""The cores of this machine, shared out among the passes that run on it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Cores:
    """So many cores; by default as many as torch would use for one operation."""

    def __init__(self, count: int | None = None) -> None:
        self._count = torch.get_num_threads() if count is None else count
        self._passes = 0
        self._lock = threading.Lock()

    @contextmanager
    def share(self) -> Iterator[int]:
        """A pass in this thread, with all cores or, beside others, its part of them.

        Passes that began earlier keep theirs to their end. torch's number of threads belongs to
        the thread that sets it.
        """
        with self._lock:
            self._passes += 1
            own = max(1, self._count // self._passes)
        if own != torch.get_num_threads():
            torch.set_num_threads(own)
        try:
            yield own
        finally:
            with self._lock:
                self._passes -= 1

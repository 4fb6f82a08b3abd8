"""Batches of a torch data set, from worker processes that a signal to the group does not end."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset

SIGNALS = {signal.SIGINT, signal.SIGTERM}


def load(dataset: Dataset[Any], workers: int, **options: Any) -> Iterator[Any]:
    """Yields the batches of a DataLoader; 0 workers use this process. options: of DataLoader.

    Ctrl-C, `timeout`, systemd and Slurm send their signals to all processes of a run. A worker that
    ends raises an error in this process, at any place and before the run can save its state.
    Workers therefore ignore SIGINT, and SIGTERM unless this process sends it.
    """
    loader = DataLoader(dataset, num_workers=workers, worker_init_fn=_obey_parent, **options)
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # which workers inherit
    try:
        batches = iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    yield from batches


def _obey_parent(_worker: int) -> None:
    """Waits for signals, which are blocked in a worker, in a thread of its own."""
    threading.Thread(target=_wait_for_parent, args=(os.getppid(),), daemon=True).start()


def _wait_for_parent(parent: int) -> None:
    while True:
        received = signal.sigwaitinfo(SIGNALS)
        if received.si_signo == signal.SIGTERM and received.si_pid == parent:
            os._exit(0)

"""A process with all its descendants: memory, suspension and termination."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

TERMINATE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Memory:
    """Memory of a process tree in bytes.

    rss: counts shared pages for every process. pss: divides shared pages among the processes;
    None if not measured.
    """

    at_s: float
    rss: int
    pss: int | None


def tree(pid: int) -> list[psutil.Process]:
    """Returns the process and its live descendants; empty if the process does not exist."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def memory(pid: int) -> Memory:
    """Returns RSS and PSS of the tree.

    The kernel walks all pages of each process, which blocks its memory allocations for about
    0.1 s.
    """
    rss = pss = 0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            info = process.memory_full_info()
            rss += info.rss
            pss += info.pss
    return Memory(time.monotonic(), rss, pss)


def resident(pid: int) -> Memory:
    """Returns the RSS of the tree, without blocking it."""
    rss = 0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            rss += process.memory_info().rss
    return Memory(time.monotonic(), rss, None)


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """Suspends the tree (SIGSTOP) while the block runs, so that it uses no CPU time."""
    stopped = tree(pid)
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in reversed(stopped):
            with suppress(psutil.NoSuchProcess):
                process.resume()


def terminate(pid: int, grace_s: float = TERMINATE_TIMEOUT_S) -> None:
    """Sends SIGTERM to the root, and SIGKILL to the processes left after `grace_s`."""
    processes = tree(pid)
    if processes:
        processes[0].terminate()
    _, left = psutil.wait_procs(processes, timeout=grace_s)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=TERMINATE_TIMEOUT_S)

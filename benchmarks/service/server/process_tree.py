"""A process with all its descendants: their memory, and their end."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

END_S = 60.0


@dataclass(frozen=True)
class Memory:
    """Bytes of a whole tree at a moment.

    rss: pages that several processes share count in each. pss: they are shared out among them;
    None where it was not looked at.
    """

    at_s: float
    rss: int
    pss: int | None


def tree(pid: int) -> list[psutil.Process]:
    """The process and its descendants that are alive; empty where it has gone."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def memory(pid: int) -> Memory:
    """What the tree holds now, with the monotonic time.

    The kernel walks all pages of each process for it, which stands still meanwhile where it wants
    memory: some 0.1 s.
    """
    rss = pss = 0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            held = process.memory_full_info()
            rss += held.rss
            pss += held.pss
    return Memory(time.monotonic(), rss, pss)


def resident(pid: int) -> Memory:
    """The same without the PSS, at once."""
    rss = 0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            rss += process.memory_info().rss
    return Memory(time.monotonic(), rss, None)


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """Stops the tree (SIGSTOP) while the block runs, so that its waiting costs nothing."""
    stopped = tree(pid)
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in reversed(stopped):
            with suppress(psutil.NoSuchProcess):
                process.resume()


def end(pid: int, grace_s: float = END_S) -> None:
    """Ends the root by SIGTERM, and after the grace what is left of the tree by SIGKILL."""
    processes = tree(pid)
    if processes:
        processes[0].terminate()
    _, left = psutil.wait_procs(processes, timeout=grace_s)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=END_S)

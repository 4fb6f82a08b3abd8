"""How the memory of a process tree grows while something is done to it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Literal

from benchmarks.service.server.process_tree import Memory, memory

Held = Literal["rss", "pss"]
WINDOW = 0.05  # of the time that is looked at, at its start and at its end


@contextmanager
def sampled(
    pid: int, every_s: float, look: Callable[[int], Memory] = memory
) -> Iterator[list[Memory]]:
    """The tree's memory while the block runs, in a list that grows meanwhile."""
    samples = [look(pid)]
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(every_s):
            samples.append(look(pid))

    thread = threading.Thread(target=sample, name="memory")
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
        samples.append(look(pid))


def growth(samples: Sequence[Memory], settle_s: float, held: Held) -> float:
    """The share by which the memory at the end exceeds that after the first `settle_s`.

    At either end the median over a twentieth of the time between counts, or the nearest sample.
    """
    started, ended = samples[0].at_s + settle_s, samples[-1].at_s
    window = WINDOW * (ended - started)
    later = [each for each in samples if each.at_s >= started] or [samples[-1]]
    first = [each for each in later if each.at_s <= started + window] or later[:1]
    last = [each for each in later if each.at_s >= ended - window]
    before, after = (median(getattr(each, held) for each in some) for some in (first, last))
    return float(after / before - 1)

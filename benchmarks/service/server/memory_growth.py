"""Memory growth of a process tree under load."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Literal

from benchmarks.service.server.process_tree import Memory, memory

MemoryField = Literal["rss", "pss"]
WINDOW = 0.05  # share of the time at its start and at its end


@contextmanager
def sampled(
    pid: int, every_s: float, measure: Callable[[int], Memory] = memory
) -> Iterator[list[Memory]]:
    """Samples the tree's memory while the block runs, into the returned list."""
    samples = [measure(pid)]
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(every_s):
            samples.append(measure(pid))

    thread = threading.Thread(target=sample, name="memory")
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
        samples.append(measure(pid))


def growth(samples: Sequence[Memory], warmup_s: float, field: MemoryField) -> float:
    """Returns the relative growth of memory from `warmup_s` to the end.

    Start and end are medians over 5% of the time between them, or the nearest sample.
    """
    started, ended = samples[0].at_s + warmup_s, samples[-1].at_s
    window = WINDOW * (ended - started)
    later = [sample for sample in samples if sample.at_s >= started] or [samples[-1]]
    first = [sample for sample in later if sample.at_s <= started + window] or later[:1]
    last = [sample for sample in later if sample.at_s >= ended - window]
    before, after = (
        median(getattr(sample, field) for sample in window_samples)
        for window_samples in (first, last)
    )
    return float(after / before - 1)

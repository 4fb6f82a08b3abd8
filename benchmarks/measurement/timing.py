"""Seconds of several pieces of work, measured in turn so that a drift of the machine hits all."""

import gc
import time
from collections.abc import Callable, Sequence

import torch

Work = Callable[[], object]


def alternating_seconds(
    works: Sequence[Work], repeats: int, warmups: int, device: torch.device
) -> list[list[float]]:
    """Wall-clock seconds of each work, `repeats` times, in the order ABAB...

    All works run `warmups` times unmeasured first. On a CUDA device a measurement ends when the
    device has finished. Python's garbage collector is off meanwhile.
    """
    for _ in range(warmups):
        for work in works:
            work()
    seconds: list[list[float]] = [[] for _ in works]
    gc.disable()
    try:
        for _ in range(repeats):
            for work, own in zip(works, seconds, strict=True):
                own.append(seconds_of(work, device))
    finally:
        gc.enable()
    return seconds


def paired_seconds(
    ours: Work, reference: Work, repeats: int, warmups: int, device: torch.device
) -> tuple[list[float], list[float]]:
    """The same of the two sides of a comparison."""
    first, second = alternating_seconds([ours, reference], repeats, warmups, device)
    return first, second


def seconds_of(work: Work, device: torch.device) -> float:
    """Wall-clock seconds of one run."""
    wait_for(device)
    started = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - started


def wait_for(device: torch.device) -> None:
    """Returns when a CUDA device has done all that it was given; at once on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

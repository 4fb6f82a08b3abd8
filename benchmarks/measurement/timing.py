"""Timing of functions in alternation, so that drift of the machine affects all alike."""

import gc
import time
from collections.abc import Callable, Sequence

import torch

Work = Callable[[], object]


def alternating_seconds(
    works: Sequence[Work], repeats: int, warmups: int, device: torch.device
) -> list[list[float]]:
    """Returns wall-clock seconds of each function, `repeats` times, in the order ABAB...

    All functions run `warmups` times first. On a CUDA device a measurement ends when the device
    is idle. Python's garbage collector is disabled during the measurement.
    """
    for _ in range(warmups):
        for work in works:
            work()
    seconds: list[list[float]] = [[] for _ in works]
    gc.disable()
    try:
        for _ in range(repeats):
            for work, times in zip(works, seconds, strict=True):
                times.append(seconds_of(work, device))
    finally:
        gc.enable()
    return seconds


def paired_seconds(
    ours: Work, reference: Work, repeats: int, warmups: int, device: torch.device
) -> tuple[list[float], list[float]]:
    """Returns the alternating seconds of the two sides of a comparison."""
    first, second = alternating_seconds([ours, reference], repeats, warmups, device)
    return first, second


def seconds_of(work: Work, device: torch.device) -> float:
    """Returns wall-clock seconds of one call."""
    synchronise(device)
    started = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - started


def synchronise(device: torch.device) -> None:
    """Waits until a CUDA device is idle; returns immediately on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

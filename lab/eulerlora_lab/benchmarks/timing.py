"""Time of functions in alternation, how busy a device is, and peak memory of a process."""

import gc
import multiprocessing
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

Work = Callable[[], object]


def alternating_seconds(
    works: Sequence[Work], repeats: int, warmups: int, device: torch.device
) -> list[list[float]]:
    """Wall-clock seconds of each function, `repeats` times, in the order ABAB...

    Drift of the machine then affects all alike. All functions run `warmups` times first. On a CUDA
    device a measurement ends when the device is idle. Python's garbage collector is disabled.
    """
    for _ in range(warmups):
        for work in works:
            work()
    seconds: list[list[float]] = [[] for _ in works]
    gc.disable()
    try:
        for _ in range(repeats):
            for work, times in zip(works, seconds, strict=True):
                synchronise(device)
                started = time.perf_counter()
                work()
                synchronise(device)
                times.append(time.perf_counter() - started)
    finally:
        gc.enable()
    return seconds


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def busy_shares(device: torch.device, every_s: float) -> Iterator[list[float]]:
    """Collects how busy a device is while the block runs, sampled at intervals.

    A sample is the share of the time in which a kernel ran, by NVML, or on a CPU the share of all
    CPUs. There are samples when the block has ended.

    Raises:
        ModuleNotFoundError: Without the package nvidia-ml-py.
    """

    def sample() -> float:
        if device.type == "cuda":
            return torch.cuda.utilization(device) / 100
        percent: float = psutil.cpu_percent()
        return percent / 100

    sample()
    shares: list[float] = []
    ended = threading.Event()

    def collect() -> None:
        while not ended.wait(every_s):
            shares.append(sample())

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        yield shares
    finally:
        ended.set()
        thread.join()
    if not shares:
        shares.append(sample())


def in_new_process(measure: Callable[..., int], *arguments: object) -> int:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        return executor.submit(measure, *arguments).result()


def peak_growth(work: Work) -> int:
    """Highest memory of this process while `work` runs, less that before, in bytes.

    The high-water mark is that of proc_pid_status(5): a child inherits `ru_maxrss` of its parent.
    """
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status_bytes("VmRSS")
    work()
    return _status_bytes("VmHWM") - before


def _status_bytes(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    assert match is not None
    return 1024 * int(match.group(1))

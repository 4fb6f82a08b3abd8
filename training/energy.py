"""The energy that a machine uses while something runs, where it can be read.

CPU packages count it in microjoules and start again at some point (Linux, Documentation/power/
powercap), NVIDIA GPUs count it in millijoules (NVML). It is the whole machine's: other work that
runs at the same time is in it.
"""

import ctypes
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
NVML = "libnvidia-ml.so.1"
READ_EVERY_S = 60.0  # well before a package's counter starts again


@dataclass(frozen=True)
class Reading:
    """What a counter shows, and the value at which it starts again, if it does."""

    joules: float
    range_joules: float = 0.0

    def since(self, before: "Reading") -> float:
        """Joules between two readings."""
        used = self.joules - before.joules
        return used if used >= 0 else used + self.range_joules


@contextmanager
def energy_used() -> Iterator[dict[str, float]]:
    """Joules by what used them, complete once the block is done; empty where nothing tells."""
    used: dict[str, float] = {}
    before, done = dict(readings()), threading.Event()

    def read() -> None:
        for name, now in readings().items():
            if name in before:
                used[name] = used.get(name, 0.0) + now.since(before[name])
            before[name] = now

    def keep_reading() -> None:
        while not done.wait(READ_EVERY_S):
            read()

    thread = threading.Thread(target=keep_reading, daemon=True)
    thread.start()
    try:
        yield used
    finally:
        done.set()
        thread.join()
        read()


def readings() -> Mapping[str, Reading]:
    """All counters of this machine that may be read, by name."""
    return dict(_packages()) | dict(_gpus())


def _packages() -> Iterator[tuple[str, Reading]]:
    for place in sorted(POWERCAP.glob("intel-rapl:?")):  # AMD's have this name too
        with suppress(OSError, ValueError):  # on many systems only root may read it
            joules, range_joules = (
                int((place / name).read_text()) / 1e6
                for name in ("energy_uj", "max_energy_range_uj")
            )
            yield f"cpu package {place.name[-1]}", Reading(joules, range_joules)


def _gpus() -> Iterator[tuple[str, Reading]]:
    try:
        nvml = ctypes.CDLL(NVML)
    except OSError:
        return
    count, device, millijoules = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_ulonglong()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return
    for index in range(count.value):
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
            continue
        if not nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules)):
            yield f"gpu {index}", Reading(millijoules.value / 1000)

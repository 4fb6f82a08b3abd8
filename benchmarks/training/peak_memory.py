"""Bytes that training steps need beyond the model: a fresh process each on a CPU.

As a program (`python -m benchmarks.training.peak_memory SIDE IMAGES SIZES`) it measures one side and prints
the bytes. The kernel's high-water mark of this process's own memory is read, not `ru_maxrss`,
which a child inherits from the process that started it.
"""

import re
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.measurement.sizes import NetworkSizes
from benchmarks.measurement.workload import Workload
from benchmarks.training.step import STEPS, Side

STEPS_TAKEN = 2  # the second one has the optimiser's state
ROOT = Path(__file__).parents[2]


def peak_bytes(side: Side, sizes: NetworkSizes, images: int, device: torch.device) -> int:
    """The most that two steps need beyond what the model and its images hold."""
    if device.type == "cuda":
        return _peak_on_gpu(side, sizes, images, device)
    arguments = [side, str(images), sizes.model_dump_json()]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.training.peak_memory", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def _peak_on_gpu(side: Side, sizes: NetworkSizes, images: int, device: torch.device) -> int:
    step = STEPS[side](Workload.random(sizes, images, device))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    for _ in range(STEPS_TAKEN):
        step()
    return torch.cuda.max_memory_allocated(device) - before


def _peak_here(side: Side, sizes: NetworkSizes, images: int) -> int:
    step = STEPS[side](Workload.random(sizes, images, torch.device("cpu")))
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = _status_bytes("VmRSS")
    for _ in range(STEPS_TAKEN):
        step()
    return _status_bytes("VmHWM") - before


def _status_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    assert found is not None
    return 1024 * int(found.group(1))


if __name__ == "__main__":
    chosen, count, shape = sys.argv[1:]
    assert chosen in STEPS
    print(_peak_here(chosen, NetworkSizes.model_validate_json(shape), int(count)))

"""Peak memory of training steps, in addition to the model; a new process for each on a CPU.

As a program, `python -m benchmarks.training.peak_memory SIDE IMAGES SIZES` measures one side and
prints the bytes.
"""

import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.measurement.process_memory import peak_growth
from benchmarks.measurement.sizes import NetworkSizes
from benchmarks.measurement.workload import Workload
from benchmarks.training.step import STEPS, Side

MEASURED_STEPS = 2  # the optimiser allocates its state in the first
ROOT = Path(__file__).parents[2]


def peak_bytes(side: Side, sizes: NetworkSizes, images: int, device: torch.device) -> int:
    """Returns the peak memory of two steps, in addition to model and images."""
    if device.type == "cuda":
        return _peak_on_gpu(side, sizes, images, device)
    arguments = [side, str(images), sizes.model_dump_json()]
    completed = subprocess.run(
        [sys.executable, "-m", "benchmarks.training.peak_memory", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(completed.stdout)


def _peak_on_gpu(side: Side, sizes: NetworkSizes, images: int, device: torch.device) -> int:
    step = STEPS[side](Workload.random(sizes, images, device))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    for _ in range(MEASURED_STEPS):
        step()
    return torch.cuda.max_memory_allocated(device) - before


def _peak_in_this_process(side: Side, sizes: NetworkSizes, images: int) -> int:
    step = STEPS[side](Workload.random(sizes, images, torch.device("cpu")))

    def steps() -> None:
        for _ in range(MEASURED_STEPS):
            step()

    return peak_growth(steps)


if __name__ == "__main__":
    chosen, count, sizes_json = sys.argv[1:]
    assert chosen in STEPS
    network_sizes = NetworkSizes.model_validate_json(sizes_json)
    print(_peak_in_this_process(chosen, network_sizes, int(count)))

"""The machine of a measurement: processor, threads, GPU, versions."""

import functools
import platform
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from eulerlora_client.settings import Settings
from training.fit.run import current_commit

LIBRARIES = ("torchvision", "peft", "transformers")


class Machine(Settings):
    """cpu: model name. threads: number of torch threads. gpu: model name, None for the CPU."""

    cpu: str
    threads: int
    gpu: str | None

    @property
    def name(self) -> str:
        """The name as a heading."""
        return self.gpu or f"{self.cpu}, {self.threads} threads"

    @property
    def slug(self) -> str:
        """The name in a file name."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


def this_machine(device: torch.device) -> Machine:
    """Returns this machine; with the GPU if `device` is a CUDA device."""
    return Machine(
        cpu=cpu_model(),
        threads=torch.get_num_threads(),
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    )


def cpu_model() -> str:
    """Returns the processor's model name on Linux, otherwise the architecture."""
    file = Path("/proc/cpuinfo")
    text = file.read_text() if file.exists() else ""
    match = re.search(r"^model name\s*: (.+)$", text, flags=re.MULTILINE)
    return match.group(1).strip() if match else platform.machine()


def versions(libraries: Sequence[str] = LIBRARIES) -> dict[str, str]:
    """Returns the versions of Python, torch and the libraries."""
    peers = {name: version(name) for name in libraries}
    return {"python": platform.python_version(), "torch": torch.__version__} | peers


@functools.cache
def commit() -> str | None:
    """Returns the measured commit.

    Cached, so that results written into the checkout during a run do not mark it as changed.
    """
    return current_commit()

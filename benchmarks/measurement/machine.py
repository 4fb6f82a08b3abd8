"""Where a figure was measured: processor, threads, GPU, versions."""

import functools
import platform
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from eulerlora.settings import Settings
from training.fit.run import current_commit

PEERS = ("torchvision", "peft", "transformers")


class Machine(Settings):
    """cpu: the model's name. threads: that torch uses. gpu: its name, if it was measured."""

    cpu: str
    threads: int
    gpu: str | None

    @property
    def name(self) -> str:
        """In words, as a table's heading."""
        return self.gpu or f"{self.cpu}, {self.threads} threads"

    @property
    def slug(self) -> str:
        """The name as part of a file name."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


def this_machine(device: torch.device) -> Machine:
    """The machine this process runs on; its GPU only where `device` is one."""
    return Machine(
        cpu=cpu_model(),
        threads=torch.get_num_threads(),
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    )


def cpu_model() -> str:
    """The processor's name as Linux gives it, elsewhere the architecture."""
    file = Path("/proc/cpuinfo")
    text = file.read_text() if file.exists() else ""
    found = re.search(r"^model name\s*: (.+)$", text, flags=re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def versions(libraries: Sequence[str] = PEERS) -> dict[str, str]:
    """Of Python and of every library whose speed is in the figures."""
    peers = {name: version(name) for name in libraries}
    return {"python": platform.python_version(), "torch": torch.__version__} | peers


@functools.cache
def commit() -> str | None:
    """The commit that is measured, as it was when first asked: the results written into the
    checkout during a run do not make it a changed one.
    """
    return current_commit()

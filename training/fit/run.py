"""What a run is given, and what it was."""

from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator

from eulerlora.settings import Settings
from training.fit.batches import Share


@dataclass(frozen=True)
class Run:
    """Where and how a fit runs.

    seed: of the data's order and augmentation. recipe: all that the run depends on; its state is
    good for no other. state: the file that keeps its state while it is unfinished. resume:
    continue from that file where there is one; otherwise the run starts anew. tensorboard: the
    folder that its curves go to, if any. name: what its lines begin with.
    """

    accelerator: Accelerator
    seed: int
    recipe: Settings
    state: Path
    resume: bool = False
    tensorboard: Path | None = None
    name: str = ""

    @property
    def share(self) -> Share:
        """Which of the processes this one is."""
        return Share(self.accelerator.process_index, self.accelerator.num_processes)


def accelerator_on(device: torch.device) -> Accelerator:
    """accelerate on `device`: of several CUDA devices it takes the one that is torch's current."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return Accelerator(cpu=device.type == "cpu")


@dataclass(frozen=True)
class Fitted:
    """What a run was.

    images_per_second: over all processes. waiting_share: part of the time spent waiting for data.
    final_loss: the last epoch's mean.
    """

    steps: int
    seconds: float
    images_per_second: float
    waiting_share: float
    final_loss: float

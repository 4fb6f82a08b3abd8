"""The context, the result and the provenance of a run; what records its curves."""

import importlib.util
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torchvision
from accelerate import Accelerator

from eulerlora.checkpoint.config import Provenance
from eulerlora.errors import SettingsError
from eulerlora.settings import Precision
from eulerlora.validation import Settings
from training.data.labelled_images import ImageParts, OodSet
from training.fit.batches import Shard
from training.recipe.schema import Recipe

Tracker = Literal["tensorboard", "mlflow", "wandb", "trackio"]
TRACKERS: tuple[Tracker, ...] = get_args(Tracker)


@dataclass(frozen=True)
class Tracking:
    """What records the curves of a run.

    folder: of TensorBoard's and Weights & Biases' files. run: name of the run. settings: the keys
    of its recipe. The other trackers write where their environment variables say.
    """

    trackers: tuple[Tracker, ...]
    folder: Path
    run: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raises SettingsError if the module of a tracker is not installed."""
        for name in self.trackers:
            if importlib.util.find_spec(name) is None:
                raise SettingsError(
                    f"--track {name} requires the module {name}, which is not installed; "
                    f"run: pip install {name}"
                )


@dataclass(frozen=True)
class Run:
    """Where and how a fit runs.

    seed: seed of the data's order, the augmentation and the objective's draws. recipe: all
    settings that the run depends on; its state continues no other. state: the file that stores
    the state of the unfinished run. resume: continue from that file if it exists. tracking:
    of the training curves. pause_at_s: value of `time.monotonic` from which on the run
    stores its state and raises RunPaused; None runs to the end. name: prefix of progress lines.
    """

    accelerator: Accelerator
    seed: int
    recipe: Settings
    state: Path
    resume: bool = False
    tracking: Tracking | None = None
    pause_at_s: float | None = None
    name: str = ""

    @property
    def shard(self) -> Shard:
        """The part of every batch that this process gets."""
        return Shard(self.accelerator.process_index, self.accelerator.num_processes)


@dataclass(frozen=True)
class FitResult:
    """The result of a run.

    precision: of the forward pass. images_per_second: over all processes. waiting_share: fraction
    of the time spent waiting for data. final_loss: mean of the last epoch.
    """

    steps: int
    precision: Precision
    seconds: float
    images_per_second: float
    waiting_share: float
    final_loss: float


def accelerator_on(device: torch.device) -> Accelerator:
    """Returns an Accelerator for `device`; it uses torch's current CUDA device, which this sets."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return Accelerator(cpu=device.type == "cpu")


def run_provenance(recipe: Recipe, device: torch.device) -> Provenance:
    """Returns what is needed to repeat a run on `device`, as JSON values."""
    return {
        "recipe": recipe.model_dump(mode="json"),
        "seed": recipe.seed,
        "commit": current_commit(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
        },
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def data_provenance(images: ImageParts | OodSet, outliers: OodSet | None = None) -> Provenance:
    """Returns the names of the data set and the outliers, and the images skipped in each."""
    provenance: Provenance = {"data": images.name, "skipped": _skipped(images)}
    if outliers is not None:
        provenance["outliers"] = {
            "data": outliers.name,
            "images": len(outliers.images),
            "skipped": _skipped(outliers),
        }
    return provenance


def current_commit() -> str | None:
    """Returns the commit of the checkout, with "-dirty" if it has changes; None without git."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def _skipped(images: ImageParts | OodSet) -> Provenance:
    return {"count": len(images.skipped), "names": sorted(images.skipped)}


def _cpu() -> str:
    threads = torch.get_num_threads()
    return f"{threads} CPU thread{'s' * (threads != 1)}"

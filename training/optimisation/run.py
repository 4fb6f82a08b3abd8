"""A run: its context, its result and provenance, and the stored state of an unfinished one.

A run continues from its state to the same weights. All randomness of a run is a function of seed,
epoch, step and image. The state therefore holds only the trained parameters, the buffers, the
objective's extra state, the optimiser's moments, and the progress; and, to refuse others, the
settings and a digest of the images.
"""

import importlib.util
import json
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torchvision
from accelerate import Accelerator, InitProcessGroupKwargs
from torch import Tensor, nn

from eulerlora.checkpoint.weights import read_metadata, read_tensors, write_tensors
from eulerlora.settings import Provenance
from eulerlora_contract.errors import (
    CheckpointError,
    DataError,
    NonFiniteError,
    OutputPathError,
    SettingsError,
)
from eulerlora_contract.output_files import remove_leftovers, storage_errors
from eulerlora_contract.printable import printable
from eulerlora_contract.processes import child_environment
from eulerlora_contract.sampling import Precision
from eulerlora_contract.settings import Settings
from training.data.images import ImageParts, OodSet
from training.optimisation.batches import Shard
from training.recipe.schema import Recipe


@dataclass(frozen=True)
class Progress:
    """Progress of a run after a number of optimiser steps.

    Attributes:
        waited_s: The part of `seconds` spent waiting for data.
        epoch_loss: Sum of the losses of the current epoch's `epoch_steps` steps.
        loss_by_epoch: Means of the finished epochs.
        precision: Of all steps of the run; None before the first.
    """

    step: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    epoch_loss: float = 0.0
    epoch_steps: int = 0
    loss_by_epoch: Sequence[float] = ()
    precision: Precision | None = None

    @property
    def mean_loss(self) -> float:
        return self.epoch_loss / self.epoch_steps

    def after(self, loss: float, seconds: float, waited_s: float) -> "Progress":
        return replace(
            self,
            step=self.step + 1,
            seconds=self.seconds + seconds,
            waited_s=self.waited_s + waited_s,
            epoch_loss=self.epoch_loss + loss,
            epoch_steps=self.epoch_steps + 1,
        )


@dataclass(frozen=True)
class TrainedState:
    """The tensors that training changes: trainable parameters, buffers such as the statistics of
    batch normalisation, state of the optimiser, `Objective.extra_state`.
    """

    network: nn.Module
    optimiser: torch.optim.Optimizer
    extra_state: Mapping[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by their name in the file."""
        named: dict[str, Tensor] = dict(self._parameters())
        named |= {f"buffer.{name}": buffer for name, buffer in self.network.named_buffers()}
        named |= {f"extra.{name}": tensor for name, tensor in self.extra_state.items()}
        return named | {
            f"optimiser.{name}.{moment}": tensor
            for name, parameter in self._parameters()
            for moment, tensor in self.optimiser.state.get(parameter, {}).items()
        }

    def create_moments(self) -> None:
        """Creates the moments, which Adam and AdamW themselves do only in their first step."""
        if not isinstance(self.optimiser, torch.optim.Adam):
            return
        for _, parameter in self._parameters():
            self.optimiser.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in self.network.named_parameters():
            if parameter.requires_grad:
                yield name, parameter


def save_state(
    path: Path, trained: TrainedState, progress: Progress, settings: Settings, data_digest: str
) -> None:
    """Writes the state of a run atomically; an older state remains until then.

    `load_state` requires the same settings and the same digest of the images.

    Raises:
        StorageError: The disk is full.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {
        "progress": json.dumps(asdict(progress)),
        "settings": settings.model_dump_json(),
        "data": data_digest,
    }
    write_tensors(path, trained.tensors(), torch.float32, metadata)


def load_state(path: Path, trained: TrainedState, settings: Settings, data_digest: str) -> Progress:
    """Copies a stored state into the tensors of `trained` and returns its progress.

    Raises:
        SettingsError: The state is of other settings.
        DataError: The state is of other images.
        CheckpointError: The state is damaged or has other tensors.
    """
    metadata = read_metadata(path)
    if metadata.get("settings") != settings.model_dump_json():
        raise SettingsError(
            f"{path}: expected the state of this recipe and seed, got other settings"
        )
    if metadata.get("data") != data_digest:
        raise DataError(f"{path}: expected the state of {SAME_DATA}")
    trained.create_moments()
    targets = trained.tensors()
    tensors = read_tensors(path, targets)
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(tensors[name])
    return _progress(path, metadata)


SAME_DATA = "a run on these images, labels, groups, parts and backbone, which have changed"


def check_stored_state(path: Path, resume: bool, restart: bool) -> None:
    """Refuses a stored state that a run would neither continue nor discard.

    Removes what killed runs left beside it.

    Raises:
        OutputPathError: There is such a state.
    """
    if path.parent.is_dir():
        remove_leftovers(path)
    if path.exists() and not (resume or restart):
        raise OutputPathError(
            f"{path}: expected no stored state, got one of an earlier run; use --resume to "
            "continue that run, or --restart to discard it"
        )


def stored_steps(path: Path) -> int:
    """The steps of a stored state.

    Raises:
        CheckpointError: If missing or damaged.
    """
    return _progress(path, read_metadata(path)).step


@torch.no_grad()
def round_parameters(parameters: Iterable[tuple[str, nn.Parameter]], dtype: torch.dtype) -> None:
    """Rounds parameters in place to the type that is stored, so that evaluation measures the stored
    weights.

    Raises:
        NonFiniteError: For a value out of range.
    """
    for name, parameter in parameters:
        parameter.copy_(parameter.to(dtype).float())
        if not parameter.isfinite().all():
            raise NonFiniteError(f"expected {name} within the range of {dtype}, got larger values")


def _progress(path: Path, metadata: Mapping[str, str]) -> Progress:
    try:
        return Progress(**json.loads(metadata["progress"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(path, "its metadata does not describe a run's progress") from error


Tracker = Literal["tensorboard", "mlflow", "wandb", "trackio"]


@dataclass(frozen=True)
class Tracking:
    """What records the curves of a run.

    Attributes:
        folder: Of TensorBoard's and Weights & Biases' files; the other trackers write where their
            environment variables say.
        settings: The keys of its recipe.
    """

    trackers: tuple[Tracker, ...]
    folder: Path
    run: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Checks that the module of every tracker is installed.

        Raises:
            SettingsError: If one is not.
        """
        for name in self.trackers:
            if importlib.util.find_spec(name) is None:
                raise SettingsError(
                    f"--track {name} requires the module {name}, which is not installed; "
                    f"run: pip install {name}"
                )


@dataclass(frozen=True)
class Run:
    """Where and how an optimisation runs.

    Attributes:
        seed: Of the data's order, the augmentation and the objective's draws.
        recipe: All settings that the run depends on; its state continues no other.
        state: The file that stores the state of the unfinished run.
        data_digest: Of its images; its state continues no other.
        resume: From that file, if it exists.
        name: Prefix of progress lines.
    """

    accelerator: Accelerator
    seed: int
    recipe: Settings
    state: Path
    data_digest: str = ""
    resume: bool = False
    tracking: Tracking | None = None
    name: str = ""

    @property
    def shard(self) -> Shard:
        return Shard(self.accelerator.process_index, self.accelerator.num_processes)


@dataclass(frozen=True)
class RunResult:
    """The outcome of a run.

    Attributes:
        precision: Of the forward pass.
        images_per_second: Over all processes.
        waiting_share: Fraction of the time spent waiting for data.
        loss_by_epoch: Means over the steps.
    """

    steps: int
    precision: Precision
    seconds: float
    images_per_second: float
    waiting_share: float
    loss_by_epoch: Sequence[float]


def accelerator_on(device: torch.device) -> Accelerator:
    """An Accelerator that uses torch's current CUDA device, which this sets to `device`.

    Its processes wait for each other as long as one of them evaluates alone. torch's limit for CUDA
    devices would be ten minutes.
    """
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    waiting = InitProcessGroupKwargs(timeout=timedelta(days=7))
    return Accelerator(cpu=device.type == "cpu", kwargs_handlers=[waiting])


def run_provenance(recipe: Recipe, device: torch.device) -> Provenance:
    """What is needed to repeat a run on `device`, as JSON values."""
    threads = torch.get_num_threads()
    hardware = f"{threads} CPU thread{'s' * (threads != 1)}"
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    return {
        "recipe": recipe.model_dump(mode="json"),
        "seed": recipe.seed,
        "commit": _current_commit(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
        },
        "hardware": hardware,
        "date": datetime.now(UTC).date().isoformat(),
    }


def data_provenance(*sets: ImageParts | OodSet, outliers: OodSet | None = None) -> Provenance:
    """The names of the data sets and of the outliers, and the images skipped in them."""
    names = sorted(printable(name) for images in sets for name in images.skipped)
    provenance: Provenance = {
        "data": "; ".join(images.name for images in sets),
        "skipped": {"count": len(names), "names": names},
    }
    if outliers is not None:
        provenance["outliers"] = {
            "data": outliers.name,
            "images": len(outliers.images),
            "skipped": data_provenance(outliers)["skipped"],
        }
    return provenance


def _current_commit() -> str | None:
    """The commit of the checkout, with "-dirty" if it has changes; None without git."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=Path(__file__).parent,
            env=child_environment(),
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()

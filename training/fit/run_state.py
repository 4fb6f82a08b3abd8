"""The state of an unfinished run, from which it continues to the same weights.

All randomness of a run is a function of its seed, the epoch, the step and the image, so its state
is small: the trained parameters, their averages where there are any, the optimiser's moments, and
how far it came.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from eulerlora.atomic_files import storage_errors
from eulerlora.errors import CheckpointError, SettingsError
from eulerlora.safetensor_files import read_metadata, read_tensors, write_tensors
from eulerlora.settings import Settings
from training.fit.objective import Objective

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Tally:
    """How far a run came: optimiser steps, seconds and how many of them it waited for data, and
    the sum of this epoch's losses so far.
    """

    step: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    epoch_loss: float = 0.0
    epoch_steps: int = 0

    @property
    def mean_loss(self) -> float:
        """This epoch's mean loss so far."""
        return self.epoch_loss / self.epoch_steps

    def after(self, loss: float, seconds: float, waited_s: float) -> "Tally":
        """The tally after one more step of the epoch."""
        return Tally(
            step=self.step + 1,
            seconds=self.seconds + seconds,
            waited_s=self.waited_s + waited_s,
            epoch_loss=self.epoch_loss + loss,
            epoch_steps=self.epoch_steps + 1,
        )


def save_state(
    path: Path,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    tally: Tally,
    settings: Settings,
) -> None:
    """Writes the state of a run in one step; an older state stays until the new one is whole.

    settings: what the run depends on; only with the same can it be continued. Raises
    StorageError for a full disk.
    """
    tensors = dict(_trained(module)) | _averages(module) | _moments(module, optimiser)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"progress": json.dumps(asdict(tally)), "settings": settings.model_dump_json()}
    write_tensors(path, tensors, torch.float32, metadata)


def load_state(
    path: Path, module: nn.Module, optimiser: torch.optim.Optimizer, settings: Settings
) -> Tally:
    """Puts the state of a run into its module and optimiser, and tells how far it came.

    Raises SettingsError for a state of other settings, CheckpointError for a damaged one.
    """
    metadata = read_metadata(path)
    if metadata.get("settings") != settings.model_dump_json():
        raise SettingsError(f"{path}: this state is of a run with other settings")
    _make_moments(optimiser)
    targets = dict(_trained(module)) | _averages(module) | _moments(module, optimiser)
    tensors = read_tensors(path, targets)
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(tensors[name])
    return _tally(path, metadata)


def steps_of_state(path: Path) -> int:
    """How many steps the run had taken. Raises CheckpointError for no or a damaged state."""
    return _tally(path, read_metadata(path)).step


def _tally(path: Path, metadata: Mapping[str, str]) -> Tally:
    try:
        return Tally(**json.loads(metadata["progress"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(path, "its metadata does not describe a run's progress") from error


def _averages(module: nn.Module) -> dict[str, Tensor]:
    found = module.averages() if isinstance(module, Objective) else {}
    return {f"average.{name}": tensor for name, tensor in found.items()}


def _trained(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, each) for name, each in module.named_parameters() if each.requires_grad]


def _moments(module: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"optimiser.{name}.{moment}": optimiser.state[parameter][moment]
        for name, parameter in _trained(module)
        for moment in MOMENTS
    }


def _make_moments(optimiser: torch.optim.Optimizer) -> None:
    """Gives AdamW the state that it otherwise makes at its first step."""
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            optimiser.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

"""Training curves for TensorBoard, MLflow, Weights & Biases or Trackio."""

import importlib.util
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from eulerlora.atomic_files import storage_errors
from eulerlora.errors import SettingsError
from training.fit.batches import RunLength
from training.fit.optimisation import Step
from training.fit.run_state import Progress

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


class Curves:
    """Writes the curves of a run to its trackers; does nothing without tracking.

    first_step: the step, counted from 0, at which the run starts or continues; TensorBoard forgets
    the values that an earlier run wrote at this step or later. Raises StorageError for a full disk.
    """

    def __init__(self, tracking: Tracking | None, first_step: int) -> None:
        self.tracking = tracking
        self.trackers: list[Any] = []
        if tracking is None:
            return
        with storage_errors(tracking.folder):
            for name in tracking.trackers:
                self.trackers.append(_started(name, tracking, first_step))

    def add_step(self, step: Step, before: Progress, after: Progress, length: RunLength) -> None:
        """Adds a step; before, after: the progress around it."""
        images = length.images_after(after.step) - length.images_after(before.step)
        seconds = after.seconds - before.seconds
        values = {
            "step/loss": step.loss,
            "step/learning_rate": step.learning_rate,
            "step/gradient_norm": step.gradient_norm,
            "step/images_per_second": images / seconds,
            "step/waiting_share": (after.waited_s - before.waited_s) / seconds,
        }
        self._log(values, before.step)

    def add_epoch(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Adds the epoch that the last step ended, at that step. metrics: besides its loss."""
        values = {"epoch/mean_loss": progress.mean_loss}
        values |= {f"epoch/{name}": value for name, value in metrics.items()}
        self._log(values, progress.step - 1)

    def close(self) -> None:
        """Ends the runs of the trackers and ignores write errors; `add_step` reports them."""
        for tracker in self.trackers:
            with suppress(OSError):
                tracker.finish()

    def _log(self, values: Mapping[str, float], step: int) -> None:
        if self.tracking is None:
            return
        with storage_errors(self.tracking.folder):
            for tracker in self.trackers:
                tracker.log(dict(values), step=step)


def _started(name: Tracker, tracking: Tracking, first_step: int) -> Any:
    """Returns Accelerate's tracker of this name, with a started run."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS  # noqa: PLC0415 - takes a second

    kind, run = LOGGER_TYPE_TO_CLASS[name], tracking.run
    if name == "tensorboard":
        tracker = kind(run, tracking.folder, purge_step=first_step)
        tracker.start()
        return tracker
    options = {"run_name": run} if name == "mlflow" else {"name": run}
    if name == "wandb":
        tracking.folder.mkdir(parents=True, exist_ok=True)
        options["dir"] = str(tracking.folder)
    tracker = kind("eulerlora", **options)
    tracker.start()
    tracker.store_init_configuration(dict(tracking.settings))
    return tracker

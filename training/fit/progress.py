"""Progress of a training run: a bar or lines, and curves for TensorBoard and other trackers."""

import resource
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from eulerlora_client.output_files import storage_errors
from eulerlora_client.progress import (
    LINE_INTERVAL_S,
    IntervalTimer,
    ProgressBar,
    format_duration,
    on_terminal,
)
from training.fit.batches import RunLength
from training.fit.optimisation import Step
from training.fit.run import Progress, Tracker, Tracking

ESTIMATE_STEPS = 6
"""Steps of a session after which its duration is estimated; the first is left out."""


class ProgressDisplay:
    """Shows the progress of a run, over all epochs: a bar on a terminal, otherwise lines.

    Shows the estimated duration and the memory after ESTIMATE_STEPS steps.

    start: progress of earlier sessions; rates and the time left cover this session only. name:
    prefix of every line. enabled: False shows nothing.
    """

    def __init__(self, length: RunLength, start: Progress, name: str, enabled: bool) -> None:
        self.length, self.start, self.enabled = length, start, enabled
        self.first = start
        self.prefix = f"{name}: " if name else ""
        self.bar: ProgressBar | None = None
        if enabled and on_terminal():
            self.bar = ProgressBar(self.prefix + "training", "steps", length.steps, start.step)
        self.timer = IntervalTimer(LINE_INTERVAL_S)

    def show(self, progress: Progress) -> None:
        """Shows the progress after one more step: on the bar, or as a line if one is due."""
        if progress.step - self.start.step == 1:
            self.first = progress
        elif progress.step - self.start.step == ESTIMATE_STEPS:
            self.print(estimate_line(self.first, progress, self.length))
        if self.bar is not None:
            epoch = f"{self.prefix}epoch {self.length.epoch_of(progress.step)}/{self.length.epochs}"
            self.bar.advance(epoch, f"loss {progress.mean_loss:.3f}")
        elif self.enabled and self.timer.due():
            self.print(run_line(progress, self.start, self.length))

    def print(self, line: str) -> None:
        """Prints a permanent line on stdout."""
        if self.bar is not None:
            self.bar.print(self.prefix + line)
        elif self.enabled:
            print(self.prefix + line, flush=True)

    def close(self) -> None:
        """Removes the bar."""
        if self.bar is not None:
            self.bar.close()


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


def run_line(progress: Progress, start: Progress, length: RunLength) -> str:
    """Returns "step 120/876, epoch 1/4, loss 1.234, 210 images/s, 3% waiting, 4 min left".

    The loss is the current epoch's mean; rates and time left cover the steps after `start`.
    """
    seconds = progress.seconds - start.seconds
    images = length.images_after(progress.step) - length.images_after(start.step)
    left_s = seconds / (progress.step - start.step) * (length.steps - progress.step)
    return (
        f"step {progress.step}/{length.steps}, "
        f"epoch {length.epoch_of(progress.step)}/{length.epochs}, loss {progress.mean_loss:.3f}, "
        f"{images / seconds:.0f} images/s, {(progress.waited_s - start.waited_s) / seconds:.0%} "
        f"waiting, {format_duration(left_s)} left"
    )


def epoch_line(progress: Progress, length: RunLength, metrics: Mapping[str, float]) -> str:
    """Returns "epoch 1/4: loss 1.2340, validation nll 0.8120": an epoch's loss and metrics."""
    epoch = length.epoch_of(progress.step)
    parts = [f"loss {progress.mean_loss:.4f}"]
    parts += [f"{name.replace('_', ' ')} {value:.4g}" for name, value in metrics.items()]
    return f"epoch {epoch}/{length.epochs}: {', '.join(parts)}"


def estimate_line(first: Progress, progress: Progress, length: RunLength) -> str:
    """Returns the estimated duration of the remaining steps and the memory in use.

    first: progress after the first step of the session, which is slower than the others.
    """
    seconds = (progress.seconds - first.seconds) / (progress.step - first.step)
    left = length.steps - progress.step
    return (
        f"{seconds:.2f} s per step: about {format_duration(seconds * left)} for {left:,} more "
        f"steps; {_memory()}"
    )


def _memory() -> str:
    """Returns the largest memory of the process so far, of the GPU where it is used."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB of GPU memory"
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f"{peak_kb * 1024 / 1e9:.1f} GB of memory"

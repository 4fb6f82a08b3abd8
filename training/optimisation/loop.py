"""The optimisation loop of pretraining and adapter training, its progress and its curves."""

import resource
import signal
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from types import FrameType
from typing import Any

import torch

from eulerlora_contract.output_files import storage_errors
from eulerlora_contract.progress import ProgressBar, format_duration
from training.optimisation.batches import LoadedBatches, RunLength
from training.optimisation.run import (
    Progress,
    Run,
    RunResult,
    Tracker,
    Tracking,
    TrainedState,
    load_state,
    save_state,
)
from training.optimisation.step import Objective, Optimisation, Step


def optimise(objective: Objective[Any], batches: LoadedBatches, run: Run) -> RunResult:
    """Trains the objective's network for all epochs, with one optimiser step per batch.

    Saves the state at intervals and at the end.

    Raises:
        NonFiniteError: With step and quantity, at the first loss or gradient norm that is not
            finite, before the parameters change.
        StorageError: If the state cannot be written; an older one remains.
        KeyboardInterrupt: On Ctrl-C, after the step and with its state saved; on SIGTERM
            SystemExit(143).
    """
    return _Loop(objective, batches, run).run_to_end()


class _Loop:
    def __init__(self, objective: Objective[Any], batches: LoadedBatches, run: Run) -> None:
        self.batches, self.settings, self.run = batches, batches.settings, run
        self.length = batches.length
        self.optimisation = Optimisation(
            objective, self.settings, self.length, run.accelerator, run.seed
        )
        self.trained = TrainedState(
            objective.network, self.optimisation.optimiser, objective.extra_state()
        )
        self.progress = Progress()
        resumed = run.resume and run.state.exists()
        if resumed:
            self.progress = load_state(run.state, self.trained, run.recipe, run.data_digest)
            # `auto` is measured: a later process might choose another precision.
            self.optimisation.precision = self.progress.precision or self.optimisation.precision
        self.progress = replace(self.progress, precision=self.optimisation.precision)
        self.optimisation.prepare()
        self.saved_at_s = self.progress.seconds
        main = run.accelerator.is_main_process
        self.curves = _Curves(run.tracking if main else None, self.progress.step)
        self.display = _ProgressDisplay(self.length, self.progress, run.name, enabled=main)
        if resumed:
            self.display.print(f"continuing after step {self.progress.step} of {run.state}")

    def run_to_end(self) -> RunResult:
        with (
            _deferred_interrupt() as interrupts,
            closing(self.display),
            closing(self.curves),
            closing(self._steps()) as steps,  # ends the workers of an epoch
        ):
            for step, before in steps:
                self._report(step, before)
                if self._any_process(bool(interrupts)):
                    self._save()
                    if signal.SIGTERM in interrupts:
                        raise SystemExit(128 + signal.SIGTERM)
                    raise KeyboardInterrupt
                if self.progress.seconds - self.saved_at_s > self.settings.state_every_s:
                    self._save()
            self._save()
        return RunResult(
            steps=self.progress.step,
            precision=self.optimisation.precision,
            seconds=self.progress.seconds,
            images_per_second=self.length.images_after(self.progress.step) / self.progress.seconds,
            waiting_share=self.progress.waited_s / self.progress.seconds,
            loss_by_epoch=list(self.progress.loss_by_epoch),
        )

    def _steps(self) -> Generator[tuple[Step, Progress], None, None]:
        """Takes the remaining steps of all epochs; yields each with the progress before it.

        A step's seconds are those since the previous step.
        """
        first_epoch, skip = divmod(self.progress.step, self.length.steps_per_epoch)
        for epoch in range(first_epoch, self.length.epochs):
            if skip == 0:
                self.progress = replace(self.progress, epoch_loss=0.0, epoch_steps=0)
            previous_s = requested_s = time.monotonic()
            for pixels, labels in self.batches.epoch(epoch, skip):
                received_s = time.monotonic()
                before = self.progress
                step = self.optimisation.step(before.step, pixels, labels)
                now_s = time.monotonic()
                self.progress = before.after(
                    step.loss, seconds=now_s - previous_s, waited_s=received_s - requested_s
                )
                previous_s = now_s
                yield step, before
                requested_s = time.monotonic()
            skip = 0

    def _report(self, step: Step, before: Progress) -> None:
        self.curves.add_step(step, before, self.progress, self.length)
        self.display.show(self.progress)
        if self.progress.step % self.length.steps_per_epoch == 0:
            losses = (*self.progress.loss_by_epoch, self.progress.mean_loss)
            self.progress = replace(self.progress, loss_by_epoch=losses)
            self.optimisation.objective.after_epoch()
            metrics = self.optimisation.objective.epoch_metrics()
            epoch = f"{self.length.epoch_of(self.progress.step)}/{self.length.epochs}"
            parts = [f"loss {self.progress.mean_loss:.4f}"]
            parts += [f"{name.replace('_', ' ')} {value:.4g}" for name, value in metrics.items()]
            self.display.print(f"epoch {epoch}: {', '.join(parts)}")
            self.curves.add_epoch(self.progress, metrics)

    def _save(self) -> None:
        if self.run.accelerator.is_main_process:
            run = self.run
            save_state(run.state, self.trained, self.progress, run.recipe, run.data_digest)
        self.saved_at_s = self.progress.seconds

    def _any_process(self, pending: bool) -> bool:
        """True if `pending` is True in any process: all must leave the loop at the same step."""
        accelerator = self.run.accelerator
        if accelerator.num_processes == 1:
            return pending
        count = torch.tensor(pending, device=accelerator.device).int()
        return bool(accelerator.reduce(count, "sum"))


@contextmanager
def _deferred_interrupt() -> Iterator[list[int]]:
    """Records a first Ctrl-C or SIGTERM within the block; a second one has its usual effect.

    Outside the main thread, which alone can handle signals, it changes nothing.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def record(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        restore()

    for number in previous:
        signal.signal(number, record)
    try:
        yield received
    finally:
        restore()


class _ProgressDisplay:
    """Shows the progress of a run, over all epochs.

    Shows the estimated duration and the memory after six steps. Rates and the time left
    cover this session only, which begins after `start`.
    """

    def __init__(self, length: RunLength, start: Progress, name: str, enabled: bool) -> None:
        self.length, self.start, self.first = length, start, start
        self.prefix = f"{name}: " if name else ""
        self.bar = ProgressBar(self.prefix + "training", "steps", length.steps, start.step, enabled)

    def show(self, progress: Progress) -> None:
        """Shows the progress after one more step."""
        if progress.step - self.start.step == 1:
            self.first = progress
        elif progress.step - self.start.step == 6:  # the first step is left out
            self.print(_estimate_line(self.first, progress, self.length))
        epoch = f"{self.prefix}epoch {self.length.epoch_of(progress.step)}/{self.length.epochs}"
        self.bar.advance(epoch, _run_rates(progress, self.start, self.length))

    def print(self, line: str) -> None:
        """Prints a permanent line on stdout."""
        self.bar.print(self.prefix + line)

    def close(self) -> None:
        self.bar.close()


class _Curves:
    """Writes the curves of a run to its trackers; does nothing without tracking.

    The run starts or continues at `first_step`, counted from 0; TensorBoard forgets the values that
    an earlier run wrote at this step or later.

    Raises:
        StorageError: For a full disk.
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
        """Adds the mean loss and the metrics of an epoch, at its last step."""
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


def _run_rates(progress: Progress, start: Progress, length: RunLength) -> str:
    """Such as "loss 1.234, 210 images/s, 3% waiting".

    The loss is the current epoch's mean; the others cover the steps after `start`.
    """
    seconds = progress.seconds - start.seconds
    images = length.images_after(progress.step) - length.images_after(start.step)
    waiting = (progress.waited_s - start.waited_s) / seconds
    return f"loss {progress.mean_loss:.3f}, {images / seconds:.0f} images/s, {waiting:.0%} waiting"


def _estimate_line(first: Progress, progress: Progress, length: RunLength) -> str:
    seconds = (progress.seconds - first.seconds) / (progress.step - first.step)
    left = length.steps - progress.step
    memory = f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9:.1f} GB of memory"
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        memory = f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB of GPU memory"
    return (
        f"{seconds:.2f} s per step: about {format_duration(seconds * left)} for the {left:,} "
        f"steps left; {memory}"
    )

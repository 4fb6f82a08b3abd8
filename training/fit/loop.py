"""The optimisation loop of pretraining and adapter training."""

import signal
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch

from training.fit.batches import Batches, RunLength
from training.fit.optimisation import Objective, Optimisation, Step
from training.fit.progress import Curves, ProgressDisplay, epoch_line
from training.fit.run import FitResult, Progress, Run, TrainedState, load_state, save_state
from training.recipe.schema import OptimisationSettings


def fit(
    objective: Objective[Any], batches: Batches, settings: OptimisationSettings, run: Run
) -> FitResult:
    """Trains the objective's network for all epochs, with one optimiser step per batch.

    Saves the state at intervals and at the end. On Ctrl-C or SIGTERM it finishes the step, saves
    the state and raises KeyboardInterrupt or SystemExit(143). Raises NonFiniteError, with step and
    quantity, at the first loss or gradient norm that is not finite, before the parameters change.
    Raises StorageError if the state cannot be written; an older one remains.
    """
    return _Fit(objective, batches, settings, run).run_to_end()


class _Fit:
    """One call of `fit` and its progress."""

    def __init__(
        self, objective: Objective[Any], batches: Batches, settings: OptimisationSettings, run: Run
    ) -> None:
        self.batches, self.settings, self.run = batches, settings, run
        self.length = RunLength.of(settings, batches.images)
        self.optimisation = Optimisation(
            objective, settings, self.length, run.accelerator, run.seed
        )
        self.trained = TrainedState(
            objective.network, self.optimisation.optimiser, objective.averages()
        )
        self.progress = Progress()
        resumed = run.resume and run.state.exists()
        if resumed:
            self.progress = load_state(run.state, self.trained, run.recipe)
        self.optimisation.prepare()
        self.saved_at_s = self.progress.seconds
        main = run.accelerator.is_main_process
        self.curves = Curves(run.tracking if main else None, self.progress.step)
        self.display = ProgressDisplay(self.length, self.progress, run.name, enabled=main)
        if resumed:
            self.display.print(f"continuing after step {self.progress.step} of {run.state}")

    def run_to_end(self) -> FitResult:
        """Takes all remaining steps and returns the result."""
        with (
            deferred_interrupt() as interrupt,
            closing(self.display),
            closing(self.curves),
            closing(self._steps()) as steps,  # ends the workers of an epoch
        ):
            for step, before in steps:
                self._report(step, before)
                if self._any_process(interrupt.pending):
                    self._save()
                    if interrupt.signal == signal.SIGTERM:
                        raise SystemExit(128 + signal.SIGTERM)
                    raise KeyboardInterrupt
                if self.progress.seconds - self.saved_at_s > self.settings.state_every_s:
                    self._save()
            self._save()
        return FitResult(
            steps=self.progress.step,
            precision=self.optimisation.precision,
            seconds=self.progress.seconds,
            images_per_second=self.length.images_after(self.progress.step) / self.progress.seconds,
            waiting_share=self.progress.waited_s / self.progress.seconds,
            final_loss=self.progress.mean_loss,
        )

    def _steps(self) -> Generator[tuple[Step, Progress], None, None]:
        """Takes the remaining steps of all epochs; yields each with the progress before it.

        A step's seconds are those since the previous step.
        """
        first_epoch, skip = divmod(self.progress.step, self.length.steps_per_epoch)
        for epoch in range(first_epoch, self.length.epochs):
            if self.optimisation.objective.finished:
                self.display.print(f"stopped after epoch {epoch}, which did not lower the loss")
                return
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
        """Shows a step; after the last one of an epoch, ends and shows the epoch."""
        self.curves.add_step(step, before, self.progress, self.length)
        self.display.show(self.progress)
        if self.progress.step % self.length.steps_per_epoch == 0:
            self.optimisation.objective.after_epoch()
            metrics = self.optimisation.objective.epoch_metrics()
            self.display.print(epoch_line(self.progress, self.length, metrics))
            self.curves.add_epoch(self.progress, metrics)

    def _save(self) -> None:
        if self.run.accelerator.is_main_process:
            save_state(self.run.state, self.trained, self.progress, self.run.recipe)
        self.saved_at_s = self.progress.seconds

    def _any_process(self, pending: bool) -> bool:
        """True if `pending` is True in any process: all must leave the loop at the same step."""
        accelerator = self.run.accelerator
        if accelerator.num_processes == 1:
            return pending
        count = torch.tensor(pending, device=accelerator.device).int()
        return bool(accelerator.reduce(count, "sum"))


@dataclass
class Interrupt:
    """signal: the number of the signal that asked the run to end; None before."""

    signal: int | None = None

    @property
    def pending(self) -> bool:
        return self.signal is not None


@contextmanager
def deferred_interrupt() -> Iterator[Interrupt]:
    """Records a first Ctrl-C or SIGTERM within the block; a second one has its usual effect.

    Outside the main thread, which alone can handle signals, it changes nothing.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def record(number: int, _frame: FrameType | None) -> None:
        interrupt.signal = number
        restore()

    for number in previous:
        signal.signal(number, record)
    try:
        yield interrupt
    finally:
        restore()

"""The optimisation loop that pretraining and adapter training share."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import torch

from training.data.augmentation import Transform
from training.data.datasets import LabelledImage
from training.fit.batches import Batches, LoadedBatches, RunLength
from training.fit.curves import Curves
from training.fit.interruption import deferred_interruption
from training.fit.objective import Objective
from training.fit.optimisation import Optimisation, Step
from training.fit.progress import RunDisplay
from training.fit.run import Fitted, Run
from training.fit.run_state import Tally, load_state, save_state
from training.recipe.schema import AdamWSettings, OptimisationSettings


def fit(
    objective: Objective,
    images: Sequence[LabelledImage],
    view: Callable[[int], Transform],
    settings: OptimisationSettings,
    run: Run,
) -> Fitted:
    """`fit_batches` on images that are decoded one by one; view: the transform of each epoch's."""
    batches = LoadedBatches(images, view, settings, run.seed, run.share)
    return fit_batches(objective, batches, settings, run)


def fit_batches(
    objective: Objective, batches: Batches, settings: AdamWSettings, run: Run
) -> Fitted:
    """Trains the objective's parameters for all epochs, one optimiser step a batch.

    The state is kept every few minutes and, after
    the step under way, on Ctrl-C, which is then raised as KeyboardInterrupt. Raises
    NonFiniteError, naming step and quantity, at the first loss or gradient norm that is not
    finite; the step is not taken. Raises StorageError where the state cannot be written; an
    older one stays.
    """
    return _Fit(objective, batches, settings, run).to_the_end()


class _Fit:
    """One call of `fit_batches`: what it was given, and how far it came."""

    def __init__(
        self, objective: Objective, batches: Batches, settings: AdamWSettings, run: Run
    ) -> None:
        self.objective, self.batches = objective, batches
        self.settings, self.run = settings, run
        self.length = RunLength(batches.images, settings.batch_size, settings.epochs)
        self.optimisation = Optimisation(objective, settings, self.length.steps, run.accelerator)
        optimiser, self.tally = self.optimisation.optimiser, Tally()
        resumed = run.resume and run.state.exists()
        if resumed:
            self.tally = load_state(run.state, objective, optimiser, run.recipe)
        self.optimisation.prepare()
        self.saved_at_s = self.tally.seconds
        main = run.accelerator.is_main_process
        self.display = RunDisplay(self.length, self.tally, run.name, shown=main)
        self.curves = Curves(run.tensorboard if main else None, self.tally.step)
        if resumed:
            self.display.say(f"continuing after step {self.tally.step} of {run.state}")

    def to_the_end(self) -> Fitted:
        with (
            deferred_interruption() as interruption,
            closing(self.display),
            closing(self.curves),
        ):
            while self.tally.step < self.length.steps:
                for step, before in self._rest_of_the_epoch():
                    self._tell(step, before)
                    if self._any_process(interruption.asked):
                        self._save()
                        raise KeyboardInterrupt
                    if self.tally.seconds - self.saved_at_s > self.settings.state_every_s:
                        self._save()
            self._save()
        return Fitted(
            steps=self.length.steps,
            seconds=self.tally.seconds,
            images_per_second=self.length.images_after(self.length.steps) / self.tally.seconds,
            waiting_share=self.tally.waited_s / self.tally.seconds,
            final_loss=self.tally.mean_loss,
        )

    def _rest_of_the_epoch(self) -> Iterator[tuple[Step, Tally]]:
        """Takes the steps that the epoch still has; yields each with the tally before it.

        A step's seconds are all since the one before, of which it waited for its batch.
        """
        epoch, seen = divmod(self.tally.step, self.length.per_epoch)
        if seen == 0:
            self.tally = replace(self.tally, epoch_loss=0.0, epoch_steps=0)
        stepped = asked = time.monotonic()
        for pixels, labels in self.batches.of_epoch(epoch, seen):
            came = time.monotonic()
            before = self.tally
            step = self.optimisation.step(before.step, pixels, labels)
            now = time.monotonic()
            self.tally = before.after(step.loss, seconds=now - stepped, waited_s=came - asked)
            stepped = now
            yield step, before
            asked = time.monotonic()

    def _tell(self, step: Step, before: Tally) -> None:
        """Shows a step that was taken and, after its last one, the epoch."""
        self.curves.step(step, before, self.tally, self.length)
        self.display.show(self.tally)
        if self.tally.step % self.length.per_epoch == 0:
            epoch = self.length.epoch_of(self.tally.step)
            self.display.say(f"epoch {epoch}/{self.length.epochs}: {self.tally.mean_loss:.4f}")
            self.curves.epoch(self.tally)

    def _save(self) -> None:
        if self.run.accelerator.is_main_process:
            optimiser = self.optimisation.optimiser
            save_state(self.run.state, self.objective, optimiser, self.tally, self.run.recipe)
            self.curves.flush()
        self.saved_at_s = self.tally.seconds

    def _any_process(self, asked: bool) -> bool:
        """Whether any process was asked to stop: all must leave the loop at the same step."""
        accelerator = self.run.accelerator
        if accelerator.num_processes == 1:
            return asked
        return bool(accelerator.reduce(torch.tensor(asked, device=accelerator.device).int(), "sum"))

"""A run's curves, for TensorBoard."""

from contextlib import suppress
from pathlib import Path

from eulerlora.atomic_files import storage_errors
from training.fit.batches import RunLength
from training.fit.optimisation import Step
from training.fit.run_state import Tally


class Curves:
    """Writes a run's figures to a folder that TensorBoard reads; without a folder, nothing.

    first_step: the step that the run begins or continues with, counted from 0. What an earlier
    run wrote of this step and later ones is not shown any more. Raises StorageError for a full
    disk.
    """

    def __init__(self, folder: Path | None, first_step: int) -> None:
        self.folder, self.writer = folder, None
        if folder is not None:
            # Only here: it takes a second to import, and most runs draw no curves.
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

            with storage_errors(folder):
                self.writer = SummaryWriter(str(folder), purge_step=first_step)

    def step(self, step: Step, before: Tally, after: Tally, length: RunLength) -> None:
        """Adds a step; before, after: how far the run of this length was around it."""
        images = length.images_after(after.step) - length.images_after(before.step)
        seconds = after.seconds - before.seconds
        self._add("step/loss", step.loss, before.step)
        self._add("step/learning_rate", step.learning_rate, before.step)
        self._add("step/gradient_norm", step.gradient_norm, before.step)
        self._add("step/images_per_second", images / seconds, before.step)
        self._add("step/waiting_share", (after.waited_s - before.waited_s) / seconds, before.step)

    def epoch(self, tally: Tally) -> None:
        """Adds the epoch that ended with the last step, at that step."""
        self._add("epoch/mean_loss", tally.mean_loss, tally.step - 1)

    def flush(self) -> None:
        """Waits until all that was added is written."""
        if self.writer is not None and self.folder is not None:
            with storage_errors(self.folder):
                self.writer.flush()

    def close(self) -> None:
        """Ends the file; `flush` before tells whether all of it was written."""
        if self.writer is not None:
            with suppress(OSError):
                self.writer.close()

    def _add(self, name: str, value: float, step: int) -> None:
        if self.writer is not None and self.folder is not None:
            with storage_errors(self.folder):
                self.writer.add_scalar(name, value, step)

"""Progress of a training run: its bar or lines, and its curves for TensorBoard."""

from contextlib import suppress
from pathlib import Path

from eulerlora.atomic_files import storage_errors
from training.data.progress import (
    LINE_INTERVAL_S,
    IntervalTimer,
    ProgressBar,
    format_duration,
    on_terminal,
)
from training.fit.batches import RunLength
from training.fit.optimisation import Step
from training.fit.run_state import Progress


class ProgressDisplay:
    """Shows the progress of a run, over all epochs: a bar on a terminal, otherwise lines.

    start: progress of earlier sessions; rates and the time left cover this session only. name:
    prefix of every line. enabled: False shows nothing.
    """

    def __init__(self, length: RunLength, start: Progress, name: str, enabled: bool) -> None:
        self.length, self.start, self.enabled = length, start, enabled
        self.prefix = f"{name}: " if name else ""
        self.bar: ProgressBar | None = None
        if enabled and on_terminal():
            self.bar = ProgressBar(self.prefix + "training", "steps", length.steps, start.step)
        self.timer = IntervalTimer(LINE_INTERVAL_S)

    def show(self, progress: Progress) -> None:
        """Shows the progress after one more step: on the bar, or as a line if one is due."""
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


class Curves:
    """Writes the curves of a run to a TensorBoard folder; does nothing if it is None.

    first_step: the step, counted from 0, at which the run starts or continues; values that an
    earlier run wrote at this step or later disappear. Raises StorageError for a full disk.
    """

    def __init__(self, folder: Path | None, first_step: int) -> None:
        self.folder, self.writer = folder, None
        if folder is not None:
            # The import takes a second, and most runs write no curves.
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

            with storage_errors(folder):
                self.writer = SummaryWriter(str(folder), purge_step=first_step)

    def add_step(self, step: Step, before: Progress, after: Progress, length: RunLength) -> None:
        """Adds a step; before, after: the progress around it."""
        images = length.images_after(after.step) - length.images_after(before.step)
        seconds = after.seconds - before.seconds
        self._add("step/loss", step.loss, before.step)
        self._add("step/learning_rate", step.learning_rate, before.step)
        self._add("step/gradient_norm", step.gradient_norm, before.step)
        self._add("step/images_per_second", images / seconds, before.step)
        self._add("step/waiting_share", (after.waited_s - before.waited_s) / seconds, before.step)

    def add_epoch(self, progress: Progress) -> None:
        """Adds the epoch that the last step ended, at that step."""
        self._add("epoch/mean_loss", progress.mean_loss, progress.step - 1)

    def flush(self) -> None:
        """Waits until all values are on the disk."""
        if self.writer is not None and self.folder is not None:
            with storage_errors(self.folder):
                self.writer.flush()

    def close(self) -> None:
        """Closes the file and ignores write errors; `flush` reports them."""
        if self.writer is not None:
            with suppress(OSError):
                self.writer.close()

    def _add(self, name: str, value: float, step: int) -> None:
        if self.writer is not None and self.folder is not None:
            with storage_errors(self.folder):
                self.writer.add_scalar(name, value, step)

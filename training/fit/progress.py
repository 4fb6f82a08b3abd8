"""How far long work is, and how long it will take: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from typing import Never

from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from training.fit.batches import RunLength
from training.fit.run_state import Tally

PLAIN_EVERY_S = 30.0
"""Seconds between two plain lines."""


class RunDisplay:
    """How far a training run is; one line or bar for the whole run, not for each epoch.

    begun: what an earlier session had done; rates and the time left are of this session. name:
    what to call the run. shown: whether this process shows anything at all.
    """

    def __init__(self, length: RunLength, begun: Tally, name: str, shown: bool) -> None:
        self.length, self.begun, self.shown = length, begun, shown
        self.prefix = f"{name}: " if name else ""
        self.bar: tqdm[Never] | None = None
        if shown and _on_a_terminal():
            self.bar = tqdm(
                total=length.steps, initial=begun.step, unit="step", leave=False, file=sys.stderr
            )
        self.pace = _Pace()

    def show(self, tally: Tally) -> None:
        """Tells of one more step, on a bar always, as a line when the last one is old enough."""
        if self.bar is not None:
            epoch = f"{self.prefix}epoch {self.length.epoch_of(tally.step)}/{self.length.epochs}"
            self.bar.set_description_str(epoch, refresh=False)
            self.bar.set_postfix_str(f"loss {tally.mean_loss:.3f}", refresh=False)
            self.bar.update()
        elif self.shown and self.pace.due():
            print(self.prefix + run_line(tally, self.begun, self.length), flush=True)

    def say(self, line: str) -> None:
        """Prints a line that stays."""
        if self.bar is not None:
            tqdm.write(self.prefix + line, file=sys.stdout)
            sys.stdout.flush()
        elif self.shown:
            print(self.prefix + line, flush=True)

    def close(self) -> None:
        """Takes the bar away."""
        if self.bar is not None:
            self.bar.close()


def run_line(tally: Tally, begun: Tally, length: RunLength) -> str:
    """Such as "step 120/876, epoch 1/4, loss 1.234, 210 images/s, 3% waiting, 4 min left".

    The loss is this epoch's mean so far; the rest is of the steps after `begun`.
    """
    seconds = tally.seconds - begun.seconds
    images = length.images_after(tally.step) - length.images_after(begun.step)
    left_s = seconds / (tally.step - begun.step) * (length.steps - tally.step)
    return (
        f"step {tally.step}/{length.steps}, "
        f"epoch {length.epoch_of(tally.step)}/{length.epochs}, loss {tally.mean_loss:.3f}, "
        f"{images / seconds:.0f} images/s, {(tally.waited_s - begun.waited_s) / seconds:.0%} "
        f"waiting, {duration(left_s)} left"
    )


def duration(seconds: float) -> str:
    """Such as "40 s", "4 min" or "2 h 05 min"."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def progress(
    batches: DataLoader[tuple[Tensor, int]], label: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches; on stderr a bar where that is a terminal, elsewhere a line now and then."""
    if _on_a_terminal():
        yield from tqdm(batches, label, leave=False)
        return
    pace, begun = _Pace(), time.monotonic()
    for done, batch in enumerate(batches, start=1):
        yield batch
        if pace.due():
            left_s = (time.monotonic() - begun) / done * (len(batches) - done)
            line = f"{label}: batch {done}/{len(batches)}, {duration(left_s)} left"
            print(line, file=sys.stderr, flush=True)


class _Pace:
    """When the next plain line is due."""

    def __init__(self) -> None:
        self.told_at_s = time.monotonic()

    def due(self) -> bool:
        """Whether the last line is old enough; if so, the next one counts from now."""
        now = time.monotonic()
        if now - self.told_at_s < PLAIN_EVERY_S:
            return False
        self.told_at_s = now
        return True


def _on_a_terminal() -> bool:
    return sys.stderr.isatty()

"""Progress of long work: a bar on a terminal, plain lines at intervals elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_INTERVAL_S = 30.0
"""Seconds between two plain lines."""
REDRAW_INTERVAL_S = 0.1

Item = TypeVar("Item")


class IntervalTimer:
    """Reports when an interval has passed since it last did so, or since its creation."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.last_s = time.monotonic()

    def due(self) -> bool:
        """Returns True, and starts the next interval, if this one has passed."""
        now = time.monotonic()
        if now - self.last_s < self.interval_s:
            return False
        self.last_s = now
        return True


class ProgressBar:
    """A bar on stderr, which must be a terminal.

    unit: plural noun of what is counted. total: None if unknown. completed: the count at the start.
    """

    def __init__(self, label: str, unit: str, total: int | None = None, completed: int = 0) -> None:
        # Without rich's refresh thread: a thread's locks must not be held while DataLoader forks.
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
        )
        self.timer = IntervalTimer(REDRAW_INTERVAL_S)
        self.progress.start()
        self.task = self.progress.add_task(label, total=total, completed=completed, note="")

    def advance(self, label: str | None = None, note: str | None = None) -> None:
        """Counts one more item; label and note replace the present text."""
        self.progress.update(self.task, advance=1, description=label)
        if note is not None:
            self.progress.update(self.task, note=note)
        if self.timer.due():
            self.progress.refresh()

    def close(self) -> None:
        """Removes the bar."""
        self.progress.stop()


def track(items: Iterable[Item], label: str, unit: str, total: int | None = None) -> Iterator[Item]:
    """Yields the items; shows a bar on a terminal, elsewhere a line on stderr at intervals.

    unit: plural noun of the items. total: the number of items, if known.
    """
    if on_terminal():
        with closing(ProgressBar(label, unit, total)) as bar:
            for item in items:
                yield item
                bar.advance()
        return
    timer, start_s = IntervalTimer(LINE_INTERVAL_S), time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        if timer.due():
            line = f"{label}: {done:,} {unit}"
            if total is not None:
                left_s = (time.monotonic() - start_s) / done * (total - done)
                line = f"{label}: {done:,}/{total:,} {unit}, {format_duration(left_s)} left"
            print(line, file=sys.stderr, flush=True)


def format_duration(seconds: float) -> str:
    """Returns a duration such as "40 s", "4 min" or "2 h 05 min"."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def on_terminal() -> bool:
    """True if stderr is a terminal that can redraw a line."""
    return Console(stderr=True).is_interactive

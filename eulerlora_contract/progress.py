"""Progress of long work: a bar on a terminal, plain lines at intervals elsewhere."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Self, TypeVar

from tqdm import tqdm

LINE_INTERVAL_S = 30.0
"""Seconds between two plain lines."""
REDRAW_INTERVAL_S = 0.1
_BAR_FORMAT = "{desc} {bar} {n_fmt}/{total_fmt} {unit}{postfix}, {remaining} left"
_COUNT_FORMAT = "{desc} {n_fmt} {unit}{postfix}"
"""Format if the total is unknown."""

_Item = TypeVar("_Item")


class IntervalTimer:
    """Reports when an interval has passed since it last did so, or since its creation."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.last_s = time.monotonic()

    def due(self) -> bool:
        """If this interval has passed, starts the next one."""
        now = time.monotonic()
        if now - self.last_s < self.interval_s:
            return False
        self.last_s = now
        return True


class ProgressBar:
    """A bar on stderr, which must be a terminal; `unit` is the plural of what is counted."""

    def __init__(self, label: str, unit: str, total: int | None = None, completed: int = 0) -> None:
        self._bar = _Bar(
            desc=label,
            total=total,
            initial=completed,
            unit=unit,
            bar_format=_COUNT_FORMAT if total is None else _BAR_FORMAT,
            leave=False,
            dynamic_ncols=True,
            mininterval=REDRAW_INTERVAL_S,
            miniters=1,
            smoothing=0,
        )

    def advance(self, label: str | None = None, note: str | None = None) -> None:
        """Counts one more item; label and note replace the present text."""
        if label is not None:
            self._bar.set_description_str(label, refresh=False)
        if note is not None:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update()

    def print(self, line: str) -> None:
        """Prints a permanent line on stdout, above the bar if both are on one terminal."""
        self._bar.write(line)
        sys.stdout.flush()

    def close(self) -> None:
        self._bar.close()


class _Bar(tqdm):  # type: ignore[type-arg]  # not subscriptable at run time
    """A bar without tqdm's monitor thread: DataLoader must not fork while a thread holds a lock."""

    monitor_interval = 0


class ProgressCounter:
    """Shows a count on stderr: a bar on a terminal, lines at intervals elsewhere.

    Used in a `with` block; `unit` is the plural of what is counted.
    """

    def __init__(self, label: str, unit: str, total: int | None = None) -> None:
        self._label, self._unit, self._total, self._done = label, unit, total, 0
        self._bar = ProgressBar(label, unit, total) if on_terminal() else None
        self._timer, self._start_s = IntervalTimer(LINE_INTERVAL_S), time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self) -> None:
        self._done += 1
        if self._bar is not None:
            self._bar.advance()
        elif self._timer.due():
            print(self._line(), file=sys.stderr, flush=True)

    def _line(self) -> str:
        if self._total is None:
            return f"{self._label}: {self._done:,} {self._unit}"
        left_s = (time.monotonic() - self._start_s) / self._done * (self._total - self._done)
        counts = f"{self._done:,}/{self._total:,} {self._unit}"
        return f"{self._label}: {counts}, {format_duration(left_s)} left"


def track(
    items: Iterable[_Item], label: str, unit: str, total: int | None = None
) -> Iterator[_Item]:
    """Yields the items and shows their `ProgressCounter`."""
    with ProgressCounter(label, unit, total) as progress:
        for item in items:
            yield item
            progress.advance()


def format_duration(seconds: float) -> str:
    """Such as "40 s", "4 min" or "2 h 05 min"."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def on_terminal() -> bool:
    """True if stderr is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

"""Progress of long work: a bar on a terminal, plain lines at intervals elsewhere."""

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

_LINE_INTERVAL_S = 30.0
"""Seconds between two plain lines."""
_REDRAW_INTERVAL_S = 0.1

_Item = TypeVar("_Item")


class ProgressBar(tqdm):  # type: ignore[type-arg]  # not subscriptable at run time
    """A count on stderr; tqdm's bar on a terminal, and its text as lines elsewhere.

    Used in a `with` block, or closed. `unit` is the plural of what is counted.
    """

    monitor_interval = 0  # DataLoader must not fork while a thread holds a lock

    def __init__(
        self,
        label: str,
        unit: str,
        total: int | None = None,
        completed: int = 0,
        enabled: bool = True,
    ) -> None:
        self._drawn = _on_terminal()
        interval_s = _REDRAW_INTERVAL_S if self._drawn else _LINE_INTERVAL_S
        form = "{desc}" if self._drawn else "{desc}:"
        if total is None:
            form += " {n:,} {unit}{postfix}"
        else:
            form += " {bar}" * self._drawn + " {n:,}/{total:,} {unit}{postfix}, {remaining} left"
        super().__init__(
            desc=label,
            total=total,
            initial=completed,
            unit=unit,
            bar_format=form,
            disable=not enabled,
            leave=False,
            dynamic_ncols=self._drawn,
            mininterval=interval_s,
            miniters=1,
            delay=0 if self._drawn else interval_s,  # no line before the first interval ends
            smoothing=0,
        )

    def advance(self, label: str | None = None, note: str | None = None) -> None:
        """Counts one more item; label and note replace the present text."""
        if label is not None:
            self.set_description_str(label, refresh=False)
        if note is not None:
            self.set_postfix_str(note, refresh=False)
        self.update()

    def print(self, line: str) -> None:
        """Prints a permanent line on stdout, above the bar if both are on one terminal."""
        if self._drawn and not self.disable:
            self.write(line)
            sys.stdout.flush()
        elif not self.disable:
            print(line, flush=True)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Draws the bar, or prints the next line."""
        if self._drawn:
            super().display(msg, pos)
        else:
            print(self, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Removes the bar; lines remain."""
        if self._drawn:
            super().close()
        self.disable = True


def track(
    items: Iterable[_Item], label: str, unit: str, total: int | None = None
) -> Iterator[_Item]:
    """Yields the items and shows their `ProgressBar`."""
    with ProgressBar(label, unit, total) as progress:
        for item in items:
            yield item
            progress.advance()


def format_duration(seconds: float) -> str:
    """Such as "40 s", "4 min" or "2 h 05 min"."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _on_terminal() -> bool:
    """True if stderr is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

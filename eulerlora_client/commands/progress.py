"""Progress of a triage run on stderr: a bar on a terminal, a plain line at intervals elsewhere."""

import os
import sys
import time
from datetime import timedelta
from types import TracebackType
from typing import Self

from tqdm import tqdm

PLAIN_INTERVAL_S = 30.0
REDRAW_INTERVAL_S = 0.1
BAR_FORMAT = "{desc} {bar} {n_fmt}/{total_fmt} {unit}, {remaining} left"


class TriageProgress:
    """Shows the number of files with a result; used as a context manager."""

    def __init__(self, files: int) -> None:
        self.files, self.done = files, 0
        self._bar: _Bar | None = None
        self._started_s = self._printed_s = time.monotonic()

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self._bar = _Bar(
                desc="triage",
                total=self.files,
                unit="files",
                bar_format=BAR_FORMAT,
                leave=False,
                dynamic_ncols=True,
                mininterval=REDRAW_INTERVAL_S,
                miniters=1,
                smoothing=0,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self) -> None:
        """Counts one more file, and updates the display."""
        self.done += 1
        now_s = time.monotonic()
        if self._bar is not None:
            self._bar.update()
        elif now_s - self._printed_s >= PLAIN_INTERVAL_S and self.done < self.files:
            self._printed_s = now_s
            print(self._line(now_s - self._started_s), file=sys.stderr, flush=True)

    def _line(self, elapsed_s: float) -> str:
        left_s = elapsed_s / self.done * (self.files - self.done)
        return f"triage: {self.done}/{self.files} files, {timedelta(seconds=round(left_s))} left"


class _Bar(tqdm):  # type: ignore[type-arg]  # not subscriptable at run time
    """A bar without tqdm's monitor thread, which only adjusts a dynamic `miniters`."""

    monitor_interval = 0

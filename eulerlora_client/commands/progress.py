"""Progress of a triage run on stderr: a bar on a terminal, a plain line at intervals elsewhere."""

import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

PLAIN_INTERVAL_S = 30.0


class TriageProgress:
    """Shows the number of files with a result; used as a context manager."""

    def __init__(self, files: int) -> None:
        self.files, self.done = files, 0
        self._stack = ExitStack()
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._started_s = self._printed_s = time.monotonic()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            columns = (TextColumn("triage"), BarColumn(), MofNCompleteColumn())
            bar = Progress(
                *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
            )
            self._bar = self._stack.enter_context(bar)
            self._task = bar.add_task("", total=self.files)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def advance(self) -> None:
        """Counts one more file, and updates the display."""
        self.done += 1
        now_s = time.monotonic()
        if self._bar is not None:
            self._bar.advance(self._task)
        elif now_s - self._printed_s >= PLAIN_INTERVAL_S and self.done < self.files:
            self._printed_s = now_s
            print(self._line(now_s - self._started_s), file=sys.stderr, flush=True)

    def _line(self, elapsed_s: float) -> str:
        left_s = elapsed_s / self.done * (self.files - self.done)
        return f"triage: {self.done}/{self.files} files, {timedelta(seconds=round(left_s))} left"

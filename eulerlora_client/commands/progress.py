"""How far a triage run is: a bar on a terminal, a plain line now and then elsewhere; on stderr."""

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

PLAIN_EVERY_S = 30.0
"""Seconds between two plain lines."""


class Display:
    """Shows how many of the files are answered; to be used in a `with` block."""

    def __init__(self, files: int) -> None:
        self.files, self.done = files, 0
        self._stack = ExitStack()
        self._bar: tuple[Progress, TaskID] | None = None
        self._begun_s = self._told_s = time.monotonic()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            columns = (TextColumn("triage"), BarColumn(), MofNCompleteColumn())
            progress = Progress(
                *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
            )
            self._bar = self._stack.enter_context(progress), progress.add_task("", total=self.files)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def advance(self) -> None:
        """Tells of one more file."""
        self.done += 1
        now_s = time.monotonic()
        if self._bar is not None:
            progress, task = self._bar
            progress.advance(task)
        elif now_s - self._told_s >= PLAIN_EVERY_S and self.done < self.files:
            self._told_s = now_s
            print(self._line(now_s - self._begun_s), file=sys.stderr, flush=True)

    def _line(self, seconds: float) -> str:
        left_s = seconds / self.done * (self.files - self.done)
        return f"triage: {self.done}/{self.files} files, {timedelta(seconds=round(left_s))} left"

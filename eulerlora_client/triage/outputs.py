"""The files that a triage run leaves."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from eulerlora_client.contract.models import ClassName
from eulerlora_client.policy.policy import Policy
from eulerlora_client.triage.row_files import write_csv, write_json_lines
from eulerlora_client.triage.run import TriageRow


@dataclass(frozen=True)
class Outputs:
    """Where to write a run's rows; None where that was not asked for."""

    csv: Path | None
    json_lines: Path | None
    report: Path | None

    def check(self, images: Sequence[Path]) -> None:
        """Raises UsageError for a place that cannot be written to, before anything is asked.

        images: those of the run, none of which may be overwritten.
        """
        taken = {os.path.realpath(path): f"{path} is one of the pictures" for path in images}
        for path in (self.csv, self.json_lines, self.report):
            if path is None:
                continue
            if not path.parent.is_dir():
                raise click.UsageError(f"{path}: the folder {path.parent} does not exist")
            if not os.access(path.parent, os.W_OK):
                raise click.UsageError(f"{path}: the folder {path.parent} cannot be written to")
            place = os.path.realpath(path)  # unlike Path.resolve, takes links that lead nowhere
            if place in taken:
                raise click.UsageError(f"{path}: {taken[place]}")
            taken[place] = "another output is written there"

    def write(
        self, rows: Sequence[TriageRow], policy: Policy, classes: Sequence[ClassName]
    ) -> None:
        """Writes what was asked for, each file whole, and the others where one cannot be.

        classes: those of the model, which the report explains.
        Raises the last StorageError or OSError when all are done.
        """
        with ExitStack() as last:  # runs all of it, in the reverse order, whatever one raises
            if self.report is not None:
                last.callback(_write_report, self.report, rows, policy, classes)
            if self.json_lines is not None:
                last.callback(write_json_lines, self.json_lines, rows)
            if self.csv is not None:
                last.callback(write_csv, self.csv, rows)


def _write_report(
    path: Path, rows: Sequence[TriageRow], policy: Policy, classes: Sequence[ClassName]
) -> None:
    from eulerlora_client.report.html import write_report  # noqa: PLC0415 - slow to import

    write_report(path, rows, policy, datetime.now(UTC), classes)

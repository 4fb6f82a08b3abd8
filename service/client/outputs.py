"""The files that a triage run leaves."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from service.client.policy import Policy
from service.client.row_files import write_csv, write_json_lines
from service.client.triage import TriageRow


@dataclass(frozen=True)
class Outputs:
    """Where to write a run's rows; None where that was not asked for."""

    csv: Path | None
    json_lines: Path | None
    report: Path | None

    def check(self) -> None:
        """Raises UsageError for a folder that is not there, before anything is asked."""
        for path in (self.csv, self.json_lines, self.report):
            if path is not None and not path.parent.is_dir():
                raise click.UsageError(f"{path}: the folder {path.parent} does not exist")

    def write(self, rows: Sequence[TriageRow], policy: Policy) -> None:
        """Writes what was asked for, each file whole. Raises StorageError for a full disk."""
        if self.csv is not None:
            write_csv(self.csv, rows)
        if self.json_lines is not None:
            write_json_lines(self.json_lines, rows)
        if self.report is not None:
            from service.client.report import write_report  # noqa: PLC0415 - slow to import

            write_report(self.report, rows, policy, datetime.now(UTC))

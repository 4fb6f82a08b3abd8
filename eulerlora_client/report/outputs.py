"""The output files of a triage run."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from eulerlora_client.errors import OutputPathError
from eulerlora_client.output_files import is_replaceable
from eulerlora_client.policy.policy import Policy
from eulerlora_client.report.exports import write_csv, write_json_lines
from eulerlora_client.triage.result import TriageRow


@dataclass(frozen=True)
class Outputs:
    """The paths of the output files; None for an output that was not requested."""

    csv: Path | None
    json_lines: Path | None
    report: Path | None

    def check(self, inputs: Sequence[Path]) -> None:
        """Raises OutputPathError for a path that cannot be written or that would be overwritten.

        inputs: the files that the run reads.
        """
        taken = {os.path.realpath(path): f"{path} is an input file" for path in inputs}
        for path in (self.csv, self.json_lines, self.report):
            if path is None:
                continue
            _check_writable(path)
            real = os.path.realpath(path)  # unlike Path.resolve, accepts broken links
            if real in taken:
                raise OutputPathError(f"{path}: {taken[real]}")
            taken[real] = "another output has the same path"

    def write(self, rows: Sequence[TriageRow], policy: Policy) -> None:
        """Writes the requested files; a file that fails does not prevent the others.

        Raises the last StorageError or OSError after all files were tried.
        """
        with ExitStack() as writers:  # calls all of them in reverse order, also after an error
            if self.report is not None:
                writers.callback(_write_report, self.report, rows, policy)
            if self.json_lines is not None:
                writers.callback(write_json_lines, self.json_lines, rows)
            if self.csv is not None:
                writers.callback(write_csv, self.csv, rows)


def _check_writable(path: Path) -> None:
    if not is_replaceable(path):
        if not os.access(path, os.W_OK):
            raise OutputPathError(f"{path}: expected a writable file")
        return
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise OutputPathError(f"{path}: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK):
        raise OutputPathError(f"{path}: the folder {folder} is not writable")


def _write_report(path: Path, rows: Sequence[TriageRow], policy: Policy) -> None:
    from eulerlora_client.report.html import write_report  # noqa: PLC0415 - slow to import

    write_report(path, rows, policy, datetime.now(UTC))

"""Triage rows as a table on the terminal, the most urgent first."""

from collections.abc import Mapping, Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eulerlora_client.contract.triage import Disposition
from eulerlora_client.policy.policy import Policy
from eulerlora_client.policy.urgency import FAILED, TriageStatus
from eulerlora_client.policy.wording import NOT_FITTED, WARNING
from eulerlora_client.printable import printable
from eulerlora_client.triage.ranking import STATUS_TITLES, RankedRow, counts_by_status, ranked
from eulerlora_client.triage.run import TriageRow

FILE_WIDTH = 160
"""Columns of the table if the output is not a terminal."""

STYLES: Mapping[TriageStatus, str] = {
    Disposition.URGENT: "bold red",
    Disposition.REFER: "yellow",
    Disposition.RETAKE: "cyan",
    Disposition.ROUTINE: "",
    FAILED: "magenta",
}


def print_table(rows: Sequence[TriageRow], policy: Policy, file: TextIO) -> None:
    """Prints the table, the number of rows of each status, and the warning."""
    width = None if file.isatty() else FILE_WIDTH
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    ranked_rows = ranked(rows, policy)
    console.print(table(ranked_rows, console.encoding))
    console.print(summary(ranked_rows))
    if any(row.fitted is False for row in ranked_rows):
        console.print(NOT_FITTED)
    console.print(WARNING)


def summary(rows: Sequence[RankedRow]) -> str:
    """Returns such as "3 files: 1 prioritise, ..., 2 routine, 0 not assessed"."""
    counts = ", ".join(
        f"{count} {STATUS_TITLES[status].lower()}"
        for status, count in counts_by_status(rows).items()
    )
    return f"{len(rows)} {'file' if len(rows) == 1 else 'files'}: {counts}"


def table(rows: Sequence[RankedRow], encoding: str) -> Table:
    """Returns the table of the rows, in their order. encoding: of the output."""
    result = Table("suggested pathway", "resembles", box=box.SIMPLE, pad_edge=False)
    result.add_column("entropy", justify="right")
    result.add_column("reasons", overflow="fold", ratio=1)
    result.add_column("file", overflow="fold", ratio=1)
    for row in rows:
        cells = (printable(cell, encoding) for cell in _cells(row))
        result.add_row(*(Text(cell, style=STYLES[row.status]) for cell in cells))
    return result


def _cells(ranked_row: RankedRow) -> list[str]:
    row, prediction = ranked_row.row, ranked_row.row.prediction
    if row.decision is None:
        reasons = row.problem.detail if row.problem else ""
    else:
        reasons = ", ".join(reason.replace("_", " ") for reason in row.decision.reasons)
    return [
        STATUS_TITLES[ranked_row.status],
        "" if prediction is None else f"{prediction.label} {prediction.msp:.3f}",
        "" if prediction is None else f"{prediction.entropy:.2f}",
        reasons,
        ranked_row.name,
    ]

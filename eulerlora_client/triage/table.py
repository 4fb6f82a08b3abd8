"""Triage rows as a table in the terminal, the most urgent first."""

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
from eulerlora_client.triage.printable import printable
from eulerlora_client.triage.ranking import KIND_TITLES, Result, counts_of, results_of
from eulerlora_client.triage.run import TriageRow

PLAIN_WIDTH = 160
"""Columns where there is no terminal to ask."""

STYLES: Mapping[TriageStatus, str] = {
    Disposition.URGENT: "bold red",
    Disposition.REFER: "yellow",
    Disposition.RETAKE: "cyan",
    Disposition.ROUTINE: "",
    FAILED: "magenta",
}


def show(rows: Sequence[TriageRow], policy: Policy, file: TextIO) -> None:
    """Prints the table, a count of each disposition, and the warning that belongs to them."""
    width = None if file.isatty() else PLAIN_WIDTH
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    results = results_of(rows, policy)
    console.print(table(results, console.encoding))
    console.print(counts(results))
    if any(result.fitted is False for result in results):
        console.print(NOT_FITTED)
    console.print(WARNING)


def counts(results: Sequence[Result]) -> str:
    """Such as "3 files: 1 prioritise, ..., 2 routine, 0 not assessed"."""
    found = (f"{count} {KIND_TITLES[kind].lower()}" for kind, count in counts_of(results).items())
    return f"{len(results)} {'file' if len(results) == 1 else 'files'}: {', '.join(found)}"


def table(results: Sequence[Result], encoding: str) -> Table:
    """The results in their order. encoding: of the place where it will be printed."""
    made = Table("suggested pathway", "resembles", box=box.SIMPLE, pad_edge=False)
    made.add_column("entropy", justify="right")
    made.add_column("reasons", overflow="fold", ratio=1)
    made.add_column("file", overflow="fold", ratio=1)
    for result in results:
        cells = (printable(cell, encoding) for cell in _cells(result))
        made.add_row(*(Text(cell, style=STYLES[result.kind]) for cell in cells))
    return made


def _cells(result: Result) -> tuple[str, str, str, str, str]:
    row, found = result.row, result.row.prediction
    if row.decision is None:
        reasons = row.problem.detail if row.problem else ""
    else:
        reasons = ", ".join(reason.replace("_", " ") for reason in row.decision.reasons)
    return (
        KIND_TITLES[result.kind],
        "" if found is None else f"{found.label} {found.msp:.3f}",
        "" if found is None else f"{found.entropy:.2f}",
        reasons,
        result.name,
    )

"""Triage rows as a table in the terminal, the most urgent first."""

from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.client.policy import Disposition, Policy
from service.client.triage import TriageRow
from service.client.wording import NOT_FITTED, TITLES, WARNING

NO_DECISION = "no decision"
PLAIN_WIDTH = 160
"""Columns where there is no terminal to ask."""

STYLES = {
    Disposition.URGENT: "bold red",
    Disposition.REFER: "yellow",
    Disposition.RETAKE: "cyan",
    Disposition.ROUTINE: "",
}


def show(rows: Sequence[TriageRow], policy: Policy, file: TextIO) -> None:
    """Prints the table, a count of each disposition, and the warning that belongs to them."""
    width = None if file.isatty() else PLAIN_WIDTH
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    console.print(table(by_urgency(rows, policy), console.encoding))
    console.print(counts(rows))
    if any(row.prediction and not policy.fitted_to(row.prediction) for row in rows):
        console.print(NOT_FITTED)
    console.print(WARNING)


def by_urgency(rows: Sequence[TriageRow], policy: Policy) -> list[TriageRow]:
    """By severity, then by how much a row resembles the malignant group; without a decision last.

    Ties keep their order.
    """

    def key(row: TriageRow) -> tuple[int, float]:
        if row.decision is None or row.prediction is None:
            return 1, 0.0
        return (
            -row.decision.disposition.severity,
            -policy.malignant_probability(row.prediction),
        )

    return sorted(rows, key=key)


def counts(rows: Sequence[TriageRow]) -> str:
    """Such as "4 files: 1 urgent, 0 refer, 0 retake, 2 routine, 1 no decision"."""
    found = Counter(
        NO_DECISION if row.decision is None else row.decision.disposition.value for row in rows
    )
    names = [*(each.value for each in Disposition), NO_DECISION]
    return f"{len(rows)} files: " + ", ".join(f"{found[name]} {name}" for name in names)


def table(rows: Sequence[TriageRow], encoding: str) -> Table:
    """The rows in their order. encoding: of the place where it will be printed."""
    made = Table("suggested pathway", "resembles", box=box.SIMPLE, pad_edge=False)
    made.add_column("entropy", justify="right")
    made.add_column("reasons", overflow="fold", ratio=1)
    made.add_column("file", overflow="fold", ratio=1)
    for row in rows:
        made.add_row(*(Text(printable(cell, encoding), style=_style(row)) for cell in _cells(row)))
    return made


def printable(text: str, encoding: str) -> str:
    """The text with escapes for what cannot be seen, steers a terminal, or cannot be encoded."""
    seen = "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )
    return seen.encode(encoding, "backslashreplace").decode(encoding)


def _cells(row: TriageRow) -> tuple[str, str, str, str, str]:
    found = row.prediction
    if row.decision is None:
        pathway, reasons = NO_DECISION, row.problem.detail if row.problem else ""
    else:
        pathway = TITLES[row.decision.disposition]
        reasons = ", ".join(reason.replace("_", " ") for reason in row.decision.reasons)
    return (
        pathway,
        "" if found is None else f"{found.label} {found.msp:.3f}",
        "" if found is None else f"{found.entropy:.2f}",
        reasons,
        str(row.path),
    )


def _style(row: TriageRow) -> str:
    return "magenta" if row.decision is None else STYLES[row.decision.disposition]

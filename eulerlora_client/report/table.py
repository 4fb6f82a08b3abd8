"""Triage rows as a table on the terminal, the most urgent first."""

import os
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TextIO

import click
from tabulate import tabulate

from eulerlora_client.contract.triage import Disposition
from eulerlora_client.policy.performance import interval
from eulerlora_client.policy.policy import Policy
from eulerlora_client.policy.urgency import FAILED, TriageStatus
from eulerlora_client.policy.wording import NOT_FITTED, WARNING
from eulerlora_client.printable import printable
from eulerlora_client.triage.ranking import STATUS_TITLES, RankedRow, counts_by_status, ranked
from eulerlora_client.triage.result import TriageRow

FILE_WIDTH = 160
"""Columns of the table if the output is not a terminal."""

MIN_COLUMN_WIDTH = 4
HEADER = ("disposition", "malignant", "resembles", "entropy", "reasons", "file")
ALIGNMENT = ("left", "right", "left", "right", "left", "left")
GAP = "  "
"""What the `plain` format of tabulate puts between two columns."""

STYLES: Mapping[TriageStatus, Callable[[str], str]] = {
    Disposition.URGENT: partial(click.style, fg="red", bold=True),
    Disposition.UNFAMILIAR: partial(click.style, fg="blue", bold=True),
    Disposition.REFER: partial(click.style, fg="yellow"),
    Disposition.RETAKE: partial(click.style, fg="cyan"),
    FAILED: partial(click.style, fg="magenta"),
}


def print_table(rows: Sequence[TriageRow], policy: Policy, file: TextIO) -> None:
    """Prints the table, the number of rows of each status, the policy's figures and the warning.

    policy: the one that decided.
    """
    width = shutil.get_terminal_size().columns if file.isatty() else FILE_WIDTH
    ranked_rows = ranked(rows)
    notes = [summary(ranked_rows), *policy_notes(ranked_rows, policy), WARNING]
    encoding = file.encoding or "utf-8"  # None for io.StringIO
    print(f"\n{table(ranked_rows, encoding, width, _shows_colours(file))}\n", file=file)
    for note in notes:
        print(textwrap.fill(note, width, break_on_hyphens=False), file=file)


def summary(rows: Sequence[RankedRow]) -> str:
    """Returns such as "3 files: 1 urgent, ..., 2 routine, 0 not assessed"."""
    counts = ", ".join(
        f"{count} {STATUS_TITLES[status].lower()}"
        for status, count in counts_by_status(rows).items()
    )
    return f"{len(rows)} {'file' if len(rows) == 1 else 'files'}: {counts}"


def policy_notes(rows: Sequence[RankedRow], policy: Policy) -> list[str]:
    """Returns the urgent threshold, and the measured performance or why it does not apply."""
    results = [row.row.result for row in rows if row.row.result is not None]
    if not results:
        return []
    names = " + ".join(map(results[0].name_of, policy.malignant.classes))
    notes = [
        f"Policy version {policy.version}: urgent from {policy.malignant.urgent:.3g} on, {names}."
    ]
    if any(row.fitted is False for row in rows):
        notes.append(NOT_FITTED)
    measured = next((result.policy.measured for result in results if result.policy.measured), ())
    for one in measured:
        target = results[0].name_of(one.target)
        notes.append(
            f"{one.data}: sensitivity for {target} "
            f"{interval(one.sensitivity, one.sensitivity_low, one.sensitivity_high)}, specificity "
            f"{interval(one.specificity, one.specificity_low, one.specificity_high)}."
        )
    return notes


def table(rows: Sequence[RankedRow], encoding: str, width: int, colours: bool) -> str:
    """Returns the table of the rows, in their order, at most `width` columns wide if possible.

    encoding: of the output. colours: True adds the escape codes of each status.
    """
    cells = [[printable(cell, encoding) for cell in _cells(row)] for row in rows]
    widths = column_widths([HEADER, *cells], width)
    styles = [STYLES.get(row.status, str) if colours else str for row in rows]
    lines = [
        [_folded(title, column) for title, column in zip(HEADER, widths, strict=True)],
        ["-" * column for column in widths],
    ]
    for style, line in zip(styles, cells, strict=True):
        lines.append(
            [_folded(cell, column, style) for cell, column in zip(line, widths, strict=True)]
        )
    # The header is a row: tabulate makes the column of a real header wider. It does not fold the
    # cells either: its maxcolwidths shows the text "False" as "True".
    return tabulate(
        lines,
        tablefmt="plain",
        colalign=ALIGNMENT,
        disable_numparse=True,
        preserve_whitespace=True,
    )


def _folded(cell: str, width: int, style: Callable[[str], str] = str) -> str:
    """Returns the text in lines of at most `width` columns, in a style."""
    return "\n".join(map(style, textwrap.wrap(cell, width, break_on_hyphens=False)))


def column_widths(lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """Returns the column widths at which the lines fit into `width`.

    Only the widest columns are narrower than their text, and none below MIN_COLUMN_WIDTH.
    """
    natural = [max(map(len, column)) for column in zip(*lines, strict=True)]
    available = width - len(GAP) * (len(natural) - 1)
    limit = max(natural)
    while limit > MIN_COLUMN_WIDTH and sum(min(column, limit) for column in natural) > available:
        limit -= 1
    return [min(column, limit) for column in natural]


def _shows_colours(file: TextIO) -> bool:
    """True for a terminal with colours whose user has not set NO_COLOR (no-color.org)."""
    return file.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def _cells(ranked_row: RankedRow) -> list[str]:
    row, result = ranked_row.row, ranked_row.row.result
    title = STATUS_TITLES[ranked_row.status]
    if result is None:
        return [title, "", "", "", row.problem.detail if row.problem else "", ranked_row.name]
    prediction = result.prediction
    return [
        title,
        f"{result.malignant.probability:.3f}",
        f"{result.label_name} {prediction.msp:.3f}",
        f"{prediction.entropy:.2f}",
        ", ".join(reason.code.replace("_", " ") for reason in result.reasons),
        ranked_row.name,
    ]

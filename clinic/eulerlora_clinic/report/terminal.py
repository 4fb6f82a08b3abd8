"""The table of `eulerlora triage` on a terminal or in a file."""

import os
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TextIO

import click
from tabulate import tabulate

from eulerlora_clinic.policy.policy import Policy
from eulerlora_clinic.policy.results import WARNING, interval
from eulerlora_clinic.report.ranking import (
    STATUS_TITLES,
    TriageRow,
    counts_by_status,
    first_of_lesions,
    ranked,
)
from eulerlora_contract.answers import FAILED, Disposition, TriageStatus
from eulerlora_contract.printable import printable

_FILE_WIDTH = 160
"""Columns of the table if the output is not a terminal."""

_MIN_COLUMN_WIDTH = 4
_HEADER = ("disposition", "target", "resembles", "entropy", "reasons", "file")
_ALIGNMENT = ("left", "right", "left", "right", "left", "left")

_GAP = "  "
"""What the `plain` format of tabulate puts between two columns."""

_STYLES: Mapping[TriageStatus, Callable[[str], str]] = {
    Disposition.URGENT: partial(click.style, fg="red", bold=True),
    Disposition.UNFAMILIAR: partial(click.style, fg="blue", bold=True),
    Disposition.REFER: partial(click.style, fg="yellow"),
    Disposition.RETAKE: partial(click.style, fg="cyan"),
    FAILED: partial(click.style, fg="magenta"),
}


def print_table(rows: Sequence[TriageRow], policy: Policy, file: TextIO) -> None:
    """Prints the table, the number of rows of each status, the policy's figures and the warning.

    `policy`: the one that decided.
    """
    width = shutil.get_terminal_size().columns if file.isatty() else _FILE_WIDTH
    ranked_rows = ranked(rows)
    first_rows = first_of_lesions(ranked_rows)
    notes = [summary(first_rows), *_policy_notes(ranked_rows, policy), WARNING]
    encoding = file.encoding or "utf-8"  # None for io.StringIO
    refused = os.environ.get("TERM") == "dumb" or os.environ.get("NO_COLOR")  # no-color.org
    colours = file.isatty() and not refused
    print(f"\n{_table(first_rows, encoding, width, colours)}\n", file=file)
    for note in notes:
        text = printable(note, encoding)
        print(textwrap.fill(text, width, break_on_hyphens=False), file=file)


def summary(rows: Sequence[TriageRow]) -> str:
    """Such as "3 files: 1 urgent, ..., 2 routine, 0 not assessed"; rows: one for each lesion."""
    counts = ", ".join(
        f"{count} {STATUS_TITLES[status].lower()}"
        for status, count in counts_by_status(rows).items()
    )
    files = sum(row.lesion_images for row in rows)
    of_lesions = f", {len(rows)} lesions" if any(row.lesion for row in rows) else ""
    return f"{files} {'file' if files == 1 else 'files'}{of_lesions}: {counts}"


def _policy_notes(rows: Sequence[TriageRow], policy: Policy) -> list[str]:
    """The thresholds, and the measured performance or why it does not apply."""
    results = [row.result for row in rows if row.result is not None]
    if not results:
        return []
    names = " + ".join(map(results[0].name_of, policy.target.classes))
    notes = [
        f"Policy version {policy.version}: routine below {policy.target.routine:.3g}, urgent from "
        f"{policy.target.urgent:.3g} on, {names}."
    ]
    notes += dict.fromkeys(notice for row in rows for notice in row.notices())
    measured = next((result.policy.measured for result in results if result.policy.measured), ())
    for one in measured:
        value, low, high = one.predictive_value, one.predictive_value_low, one.predictive_value_high
        urgent = "none" if value is None else interval(value, low, high)
        notes.append(
            f"{one.data}: sensitivity for {one.critical} "
            f"{interval(one.sensitivity, one.sensitivity_low, one.sensitivity_high)}, specificity "
            f"{interval(one.specificity, one.specificity_low, one.specificity_high)}, "
            f"{policy.target.name} among urgent {urgent}."
        )
    return notes


def _table(rows: Sequence[TriageRow], encoding: str, width: int, colours: bool) -> str:
    """The table of the rows, in their order, at most `width` columns wide if possible.

    `encoding`: of the output. `colours`: true adds the escape codes of each status.
    """
    cells = [[printable(cell, encoding) for cell in _cells(row)] for row in rows]
    widths = _column_widths([_HEADER, *cells], width)
    styles = [_STYLES.get(row.status, str) if colours else str for row in rows]
    lines = [
        [_folded(title, column) for title, column in zip(_HEADER, widths, strict=True)],
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
        colalign=_ALIGNMENT,
        disable_numparse=True,
        preserve_whitespace=True,
    )


def _folded(cell: str, width: int, style: Callable[[str], str] = str) -> str:
    return "\n".join(map(style, textwrap.wrap(cell, width, break_on_hyphens=False)))


def _column_widths(lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """Only the widest columns are narrower than their text, and none below _MIN_COLUMN_WIDTH."""
    natural = [max(map(len, column)) for column in zip(*lines, strict=True)]
    available = width - len(_GAP) * (len(natural) - 1)
    limit = max(natural)
    while limit > _MIN_COLUMN_WIDTH and sum(min(column, limit) for column in natural) > available:
        limit -= 1
    return [min(column, limit) for column in natural]


def _cells(row: TriageRow) -> list[str]:
    result = row.result
    title = STATUS_TITLES[row.status]
    name = row.name
    if row.lesion is not None:
        name += f" (lesion {row.lesion}, 1 of {row.lesion_images})"
    if result is None:
        return [title, "", "", "", row.problem.detail if row.problem else "", name]
    shown = row.shown
    reasons = ", ".join(reason.code.replace("_", " ") for reason in shown.reasons)
    if shown.figures is None:
        return [title, "", "", "", reasons, name]
    return [
        title,
        f"{shown.target:.3f}",
        f"{result.label_name} {shown.figures.msp:.3f}",
        f"{shown.figures.entropy:.2f}",
        reasons,
        name,
    ]

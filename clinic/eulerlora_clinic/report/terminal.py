"""The table of `eulerlora triage` on a terminal or in a file."""

import os
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TextIO

import click
from tabulate import tabulate

from eulerlora_clinic.language import ENGLISH, Language, message
from eulerlora_clinic.policy.policy import Policy
from eulerlora_clinic.policy.results import WARNING, answer_texts, data_name, interval
from eulerlora_clinic.report.ranking import (
    STATUS_TITLES,
    TriageRow,
    counts_by_status,
    first_of_lesions,
    ranked,
    reason_name,
)
from eulerlora_contract.answers import FAILED, Disposition, TriageStatus
from eulerlora_contract.printable import printable

_FILE_WIDTH = 160
"""Columns of the table if the output is not a terminal."""

_MIN_COLUMN_WIDTH = 4
_HEADER = (
    message("disposition"), message("target"), message("resembles"), message("entropy"),
    message("reasons"), message("file"),
)  # fmt: skip
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


def print_table(
    rows: Sequence[TriageRow], policy: Policy, file: TextIO, t: Language = ENGLISH
) -> None:
    """Prints the table, the number of rows of each status, the policy's figures and the warning.

    `policy`: the one that decided.
    """
    t = t.with_messages(answer_texts(policy, t))
    width = shutil.get_terminal_size().columns if file.isatty() else _FILE_WIDTH
    ranked_rows = ranked(rows)
    first_rows = first_of_lesions(ranked_rows)
    notes = [_summary(first_rows, t), *_policy_notes(ranked_rows, policy, t), t(WARNING)]
    encoding = file.encoding or "utf-8"  # None for io.StringIO
    refused = os.environ.get("TERM") == "dumb" or os.environ.get("NO_COLOR")  # no-color.org
    colours = file.isatty() and not refused
    print(f"\n{_table(first_rows, encoding, width, colours, t)}\n", file=file)
    for note in notes:
        text = printable(note, encoding)
        print(textwrap.fill(text, width, break_on_hyphens=False), file=file)


def _summary(rows: Sequence[TriageRow], t: Language) -> str:
    """Such as "3 files: 1 urgent, ..., 2 routine, 0 not assessed"; rows: one for each lesion."""
    texts = {"{n} " + STATUS_TITLES[one].lower(): n for one, n in counts_by_status(rows).items()}
    counts = ", ".join(t(text, n=n) for text, n in texts.items())
    counted = [t.plural(sum(row.lesion_images for row in rows), "{n} file", "{n} files")]
    if any(row.lesion for row in rows):
        counted.append(t.plural(len(rows), "{n} lesion", "{n} lesions"))
    return t("{images}: {statuses}", images=", ".join(counted), statuses=counts)


def _policy_notes(rows: Sequence[TriageRow], policy: Policy, t: Language) -> list[str]:
    """The thresholds, and the measured performance or why it does not apply."""
    results = [row.result for row in rows if row.result is not None]
    if not results:
        return []
    notes = [
        t(
            "Policy version {version}: routine below {routine}, urgent from {urgent} on, "
            "{classes}.",
            version=policy.version,
            routine=t.number(policy.target.routine),
            urgent=t.number(policy.target.urgent),
            classes=" + ".join(t(results[0].name_of(code)) for code in policy.target.classes),
        )
    ]
    notes += dict.fromkeys(notice for row in rows for notice in row.notices(t))
    measured = next((result.policy.measured for result in results if result.policy.measured), ())
    for one in measured:
        value, low, high = one.predictive_value, one.predictive_value_low, one.predictive_value_high
        sentence = t(
            "{data}: sensitivity for {critical} {sensitivity}, specificity {specificity}, {target} "
            "among urgent {urgent}.",
            data=data_name(one.data, t),
            critical=t(one.critical),
            sensitivity=interval(one.sensitivity, one.sensitivity_low, one.sensitivity_high, t),
            specificity=interval(one.specificity, one.specificity_low, one.specificity_high, t),
            target=t(policy.target.name),
            urgent=t("none") if value is None else interval(value, low, high, t),
        )
        notes.append(sentence)
    return notes


def _table(rows: Sequence[TriageRow], encoding: str, width: int, colours: bool, t: Language) -> str:
    """The table of the rows, in their order, at most `width` columns wide if possible.

    `encoding`: of the output. `colours`: true adds the escape codes of each status.
    """
    header, *cells = (
        [printable(cell, encoding) for cell in line]
        for line in (map(t, _HEADER), *(_cells(row, t) for row in rows))
    )
    widths = _column_widths([header, *cells], width)
    styles = [_STYLES.get(row.status, str) if colours else str for row in rows]
    lines = [
        [_folded(title, column) for title, column in zip(header, widths, strict=True)],
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


def _cells(row: TriageRow, t: Language) -> list[str]:
    result = row.result
    title = t(STATUS_TITLES[row.status])
    name = row.name
    if row.lesion is not None:
        name = t(
            "{name} (lesion {lesion}, 1 of {n})",
            name=name,
            lesion=row.lesion,
            n=row.lesion_images,
        )
    if result is None:
        return [title, "", "", "", row.problem.text(t) if row.problem else "", name]
    shown = row.shown
    reasons = ", ".join(t(reason_name(reason.code)) for reason in shown.reasons)
    if shown.figures is None:
        return [title, "", "", "", reasons, name]
    return [
        title,
        "" if shown.target is None else t.number(shown.target, 3),
        f"{t(result.label_name)} {t.number(shown.figures.msp, 3)}",
        t.number(shown.figures.entropy, 2),
        reasons,
        name,
    ]

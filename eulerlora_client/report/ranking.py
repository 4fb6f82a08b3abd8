"""Rows of a triage run in order of urgency."""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from eulerlora_contract.answers import ShownResult, TriageResult, WarningCode
from eulerlora_contract.policy.policy import FAILED, TriageStatus, urgency
from eulerlora_contract.policy.results import NOT_ASSESSED, TITLES


@dataclass(frozen=True)
class RowProblem:
    """Why a file has no result: a code for programs, and a text for people."""

    code: str
    detail: str


STATUS_TITLES: Mapping[TriageStatus, str] = dict([*TITLES.items(), (FAILED, NOT_ASSESSED)])
"""The title of each status, in the order of their counts."""


@dataclass(frozen=True)
class TriageRow:
    """The outcome for one file: the result, or the problem that prevented it.

    Attributes:
        name: Path below the common folder of all rows, which `ranked` sets.
        thumbnail: A picture in base64 that was sent with the result.
    """

    path: Path
    result: TriageResult | None = None
    problem: RowProblem | None = None
    name: str = ""
    thumbnail: str | None = None

    @property
    def status(self) -> TriageStatus:
        return FAILED if self.result is None else self.result.disposition

    @property
    def urgency(self) -> int:
        return urgency(self.status)

    @property
    def shown(self) -> ShownResult:
        """What people see of the result; nothing without one."""
        return ShownResult() if self.result is None else self.result.shown

    @property
    def notices(self) -> tuple[str, ...]:
        """What is not known about the thresholds, and whether the images of the service differ."""
        if self.result is None:
            return ()
        notice = self.result.policy.notice
        warnings = self.result.prediction.warnings
        shifts = (one.message for one in warnings if one.code == WarningCode.DISTRIBUTION_SHIFT)
        sentences = (f"{text[:1].upper()}{text[1:]}." for text in shifts)
        return (*((notice,) if notice else ()), *sentences)


def ranked(rows: Sequence[TriageRow]) -> list[TriageRow]:
    """Names the rows and sorts them by urgency, target probability, entropy and name."""
    folder: str | None = None
    with suppress(ValueError):  # no paths, or absolute and relative ones
        folder = os.path.commonpath([row.path.parent for row in rows])
    named = [
        replace(row, name=str(row.path.relative_to(folder) if folder else row.path)) for row in rows
    ]

    def key(row: TriageRow) -> tuple[float, float, float, str, str]:
        shown = row.shown
        target = math.inf if shown.target is None else -shown.target
        entropy = math.inf if shown.figures is None else -shown.figures.entropy
        return -row.urgency, target, entropy, row.name.casefold(), row.name

    return sorted(named, key=key)


def counts_by_status(rows: Sequence[TriageRow]) -> dict[TriageStatus, int]:
    counts = Counter(row.status for row in rows)
    return {status: counts[status] for status in STATUS_TITLES}

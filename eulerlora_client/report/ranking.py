"""Rows of a triage run in order of urgency."""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eulerlora_contract.answers import ShownResult, TriageResult
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
        """The disposition, or FAILED without a result."""
        return FAILED if self.result is None else self.result.disposition

    @property
    def urgency(self) -> int:
        """The rank by urgency; a higher one comes first."""
        return urgency(self.status)

    @property
    def shown(self) -> ShownResult:
        """What people see of the result; nothing without one."""
        return ShownResult() if self.result is None else self.result.shown

    @property
    def notice(self) -> str | None:
        """What is not known about the policy's thresholds; None if nothing."""
        return self.result.policy.notice if self.result else None


def ranked(rows: Sequence[TriageRow]) -> list[TriageRow]:
    """Returns the rows with their names, by urgency, target probability, entropy and name."""
    folder = _common_folder([row.path for row in rows])
    named = [
        replace(row, name=str(row.path.relative_to(folder) if folder else row.path)) for row in rows
    ]
    return sorted(named, key=_sort_key)


def counts_by_status(rows: Sequence[TriageRow]) -> dict[TriageStatus, int]:
    """Returns the number of rows of every status, including 0."""
    counts = Counter(row.status for row in rows)
    return {status: counts[status] for status in STATUS_TITLES}


def _sort_key(row: TriageRow) -> tuple[float, float, float, str, str]:
    shown = row.shown
    target = math.inf if shown.target is None else -shown.target
    entropy = math.inf if shown.figures is None else -shown.figures.entropy
    return -row.urgency, target, entropy, row.name.casefold(), row.name


def _common_folder(paths: Sequence[Path]) -> Path | None:
    """Returns the common folder of all paths; None if there is none."""
    try:
        return Path(os.path.commonpath([path.parent for path in paths]))
    except ValueError:  # no paths, or absolute and relative ones
        return None

"""Rows of a triage run in order of urgency.

A row that is to be retaken ranks directly below urgent rows if its target probability reaches
the urgent threshold.
"""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eulerlora_client.contract.answers import Disposition, Prediction, TriageResult
from eulerlora_client.policy.policy import FAILED, TriageStatus, urgency
from eulerlora_client.policy.results import NOT_ASSESSED, TITLES


@dataclass(frozen=True)
class RowProblem:
    """Why a file has no result: a code for programs, and a text for people."""

    code: str
    detail: str


@dataclass(frozen=True)
class TriageRow:
    """The outcome for one file: the result, or the problem that prevented it."""

    path: Path
    result: TriageResult | None = None
    problem: RowProblem | None = None


STATUS_TITLES: Mapping[TriageStatus, str] = dict([*TITLES.items(), (FAILED, NOT_ASSESSED)])
"""The title of each status, in the order of their counts."""


@dataclass(frozen=True)
class RankedRow:
    """A row with its sort keys.

    name: path below the common folder of all rows. urgency: rank, higher comes first. prediction:
    the figures that people see; None without a result, and for an unfamiliar image.
    """

    row: TriageRow
    name: str
    status: TriageStatus
    urgency: int
    prediction: Prediction | None = None

    @property
    def target(self) -> float | None:
        """The probability of the target classes; None if it is not shown."""
        result = self.row.result
        return None if result is None or self.prediction is None else result.target.probability

    @property
    def notice(self) -> str | None:
        """What is not known about the policy's urgent threshold; None if nothing."""
        return self.row.result.policy.notice if self.row.result else None


def ranked(rows: Sequence[TriageRow]) -> list[RankedRow]:
    """Returns the rows by urgency, target probability and entropy, then by name."""
    folder = _common_folder([row.path for row in rows])
    named = ((row, str(row.path.relative_to(folder) if folder else row.path)) for row in rows)
    return sorted((ranked_row(row, name) for row, name in named), key=sort_key)


def counts_by_status(rows: Sequence[RankedRow]) -> dict[TriageStatus, int]:
    """Returns the number of rows of every status, including 0."""
    counts = Counter(row.status for row in rows)
    return {status: counts[status] for status in STATUS_TITLES}


def ranked_row(row: TriageRow, name: str) -> RankedRow:
    """Returns a row with its sort keys."""
    result = row.result
    if result is None:
        return RankedRow(row, name, FAILED, 2 * urgency(FAILED))
    rank = 2 * urgency(result.disposition)  # even for plain dispositions
    reached = result.target.probability >= result.target.urgent
    if result.disposition is Disposition.RETAKE and reached:
        rank = 2 * urgency(Disposition.URGENT) - 1
    prediction = result.prediction
    shown = prediction if prediction.shows_figures else None
    return RankedRow(row, name, result.disposition, rank, shown)


def sort_key(ranked: RankedRow) -> tuple[float, float, float, str, str]:
    """Returns a key that is lower for a row that comes earlier."""
    target = math.inf if ranked.target is None else -ranked.target
    entropy = math.inf if ranked.prediction is None else -ranked.prediction.entropy
    name = ranked.name
    return -ranked.urgency, target, entropy, name.casefold(), name


def _common_folder(paths: Sequence[Path]) -> Path | None:
    """Returns the common folder of all paths; None if there is none."""
    try:
        return Path(os.path.commonpath([path.parent for path in paths]))
    except ValueError:  # no paths, or absolute and relative ones
        return None

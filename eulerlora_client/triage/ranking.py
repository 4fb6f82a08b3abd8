"""Ranks triage rows for review, the most urgent first.

A row that is to be retaken, or that failed after its prediction, ranks directly below urgent rows
if its malignant probability reaches the urgent threshold. A row that failed after the prediction of
an unfamiliar image ranks directly below unfamiliar rows, whatever its malignant probability.
"""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.triage import Disposition
from eulerlora_client.errors import PolicyError
from eulerlora_client.policy.policy import Policy
from eulerlora_client.policy.urgency import FAILED, TriageStatus, urgency
from eulerlora_client.policy.wording import NOT_ASSESSED, TITLES
from eulerlora_client.triage.run import TriageRow

STATUS_TITLES: Mapping[TriageStatus, str] = dict([*TITLES.items(), (FAILED, NOT_ASSESSED)])
"""The title of each status, in the order of their counts."""


@dataclass(frozen=True)
class RankedRow:
    """A row with its sort keys.

    name: path below the common folder of all rows. urgency: rank, higher comes first. malignant:
    probability of the malignant group; None without a prediction or without such classes.
    fitted: whether the policy's urgent threshold was set for this model, mode and samples; None
    without a prediction.
    """

    row: TriageRow
    name: str
    status: TriageStatus
    urgency: int
    malignant: float | None
    fitted: bool | None


def ranked(rows: Sequence[TriageRow], policy: Policy) -> list[RankedRow]:
    """Returns the rows by urgency, malignant probability and entropy, then by name."""
    folder = _common_folder([row.path for row in rows])
    named = ((row, str(row.path.relative_to(folder) if folder else row.path)) for row in rows)
    return sorted((ranked_row(row, name, policy) for row, name in named), key=sort_key)


def counts_by_status(rows: Sequence[RankedRow]) -> dict[TriageStatus, int]:
    """Returns the number of rows of every status, including 0."""
    counts = Counter(row.status for row in rows)
    return {status: counts[status] for status in STATUS_TITLES}


def ranked_row(row: TriageRow, name: str, policy: Policy) -> RankedRow:
    """Returns a row with its sort keys."""
    status = row.decision.disposition if row.decision else FAILED
    malignant = _malignant_probability(row.prediction, policy)
    return RankedRow(
        row=row,
        name=name,
        status=status,
        urgency=_rank(row, status, malignant, policy),
        malignant=malignant,
        fitted=policy.fitted_to(row.prediction) if row.prediction else None,
    )


def _rank(row: TriageRow, status: TriageStatus, malignant: float | None, policy: Policy) -> int:
    """Returns the rank of a row, 0 for routine; even for plain statuses."""
    if status in (Disposition.RETAKE, FAILED):
        if row.prediction is not None and row.prediction.unfamiliar:
            return 2 * urgency(Disposition.UNFAMILIAR) - 1
        if malignant is not None and malignant >= policy.malignant.urgent:
            return 2 * urgency(Disposition.URGENT) - 1
    return 2 * urgency(status)


def _malignant_probability(prediction: Prediction | None, policy: Policy) -> float | None:
    if prediction is None:
        return None
    try:
        return policy.malignant_probability(prediction)
    except PolicyError:
        return None


def sort_key(ranked: RankedRow) -> tuple[float, float, float, str, str]:
    """Returns a key that is lower for a row that comes earlier."""
    prediction = ranked.row.prediction
    malignant = math.inf if ranked.malignant is None else -ranked.malignant
    entropy = -prediction.entropy if prediction else math.inf
    name = ranked.name
    return -ranked.urgency, malignant, entropy, name.casefold(), name


def _common_folder(paths: Sequence[Path]) -> Path | None:
    """Returns the common folder of all paths; None if there is none."""
    try:
        return Path(os.path.commonpath([path.parent for path in paths]))
    except ValueError:  # no paths, or absolute and relative ones
        return None

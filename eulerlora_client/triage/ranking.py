"""Triage rows in the order in which a person is to look at them: the most urgent first.

What was not assessed stands before the routine: nobody knows yet what is on it. What is to be taken
again, or failed after the model's answer, but resembles the malignant group as much as an urgent
picture, stands next to the urgent.
"""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.triage import Disposition
from eulerlora_client.policy.policy import Policy, PolicyError
from eulerlora_client.policy.urgency import FAILED, TriageStatus, urgency
from eulerlora_client.policy.wording import NOT_ASSESSED, TITLES
from eulerlora_client.triage.run import TriageRow

KIND_TITLES: Mapping[TriageStatus, str] = dict([*TITLES.items(), (FAILED, NOT_ASSESSED)])
"""What a row may come to, and its name for people."""


@dataclass(frozen=True)
class Result:
    """A row with what it is ranked by.

    name: its path below the folder that all rows share. malignant: probability of the malignant
    group; None without a prediction, or for a model that has no such group. urgency: higher
    comes first. fitted: whether the policy's urgent threshold was set for this question; None
    without a prediction.
    """

    row: TriageRow
    name: str
    kind: TriageStatus
    urgency: int
    malignant: float | None
    fitted: bool | None


def results_of(rows: Sequence[TriageRow], policy: Policy) -> list[Result]:
    """The rows, most urgent first, then by the malignant group's probability, entropy and name."""
    folder = _shared_folder([row.path for row in rows])
    results = [_result(row, folder, policy) for row in rows]
    return sorted(results, key=_order)


def counts_of(results: Sequence[Result]) -> dict[TriageStatus, int]:
    """How many rows came to each kind, 0 included."""
    found = Counter(result.kind for result in results)
    return {kind: found[kind] for kind in KIND_TITLES}


def _result(row: TriageRow, folder: Path | None, policy: Policy) -> Result:
    kind = row.decision.disposition if row.decision else FAILED
    malignant = _malignant(row.prediction, policy)
    return Result(
        row=row,
        name=str(row.path.relative_to(folder) if folder else row.path),
        kind=kind,
        urgency=_urgency(kind, malignant is not None and malignant >= policy.malignant.urgent),
        malignant=malignant,
        fitted=policy.fitted_to(row.prediction) if row.prediction else None,
    )


def _urgency(kind: TriageStatus, suspicious: bool) -> int:
    """A row's place among the others, 0 for routine."""
    if suspicious and kind in (Disposition.RETAKE, FAILED):
        return 2 * urgency(Disposition.URGENT) - 1
    return 2 * urgency(kind)


def _malignant(prediction: Prediction | None, policy: Policy) -> float | None:
    if prediction is None:
        return None
    try:
        return policy.malignant_probability(prediction)
    except PolicyError:
        return None


def _order(result: Result) -> tuple[float, float, float, str, str]:
    found = result.row.prediction
    malignant = math.inf if result.malignant is None else -result.malignant
    entropy = -found.entropy if found else math.inf
    return -result.urgency, malignant, entropy, result.name.casefold(), result.name


def _shared_folder(paths: Sequence[Path]) -> Path | None:
    """The folder that all paths lie in; None for none, or where absolute and relative ones mix."""
    try:
        return Path(os.path.commonpath([path.parent for path in paths]))
    except ValueError:
        return None

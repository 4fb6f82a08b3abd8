"""Rows of a triage run in order of urgency, and the queue of a clinic that they make.

A row that is to be retaken ranks directly below urgent rows if its malignant probability reaches
the urgent threshold.
"""

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eulerlora_client.contract.answers import (
    Disposition,
    TriageResult,
)
from eulerlora_client.policy.policy import (
    FAILED,
    Policy,
    TriageStatus,
    urgency,
)
from eulerlora_client.policy.results import (
    NOT_ASSESSED,
    TITLES,
    decided,
)


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

    name: path below the common folder of all rows. urgency: rank, higher comes first. malignant:
    probability of the malignant group; None without a result. fitted: whether the policy's urgent
    threshold was set for this model, mode and samples; None without a result.
    """

    row: TriageRow
    name: str
    status: TriageStatus
    urgency: int
    malignant: float | None
    fitted: bool | None


def ranked(rows: Sequence[TriageRow]) -> list[RankedRow]:
    """Returns the rows by urgency, malignant probability and entropy, then by name."""
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
        return RankedRow(row, name, FAILED, 2 * urgency(FAILED), None, None)
    malignant = result.malignant
    rank = 2 * urgency(result.disposition)  # even for plain dispositions
    if result.disposition is Disposition.RETAKE and malignant.probability >= malignant.urgent:
        rank = 2 * urgency(Disposition.URGENT) - 1
    return RankedRow(
        row=row,
        name=name,
        status=result.disposition,
        urgency=rank,
        malignant=malignant.probability,
        fitted=result.policy.notice is None,
    )


def sort_key(ranked: RankedRow) -> tuple[float, float, float, str, str]:
    """Returns a key that is lower for a row that comes earlier."""
    result = ranked.row.result
    malignant = math.inf if ranked.malignant is None else -ranked.malignant
    entropy = -result.prediction.entropy if result else math.inf
    name = ranked.name
    return -ranked.urgency, malignant, entropy, name.casefold(), name


def _common_folder(paths: Sequence[Path]) -> Path | None:
    """Returns the common folder of all paths; None if there is none."""
    try:
        return Path(os.path.commonpath([path.parent for path in paths]))
    except ValueError:  # no paths, or absolute and relative ones
        return None


@dataclass(frozen=True)
class Picture:
    """A row with what is known about its image.

    source: name of its set. melanoma: the lesion is one. everyday: the image shows no lesion.
    """

    row: TriageRow
    source: str
    melanoma: bool
    everyday: bool


@dataclass(frozen=True)
class QueuedPicture:
    """A picture with its rank under a policy."""

    picture: Picture
    ranked: RankedRow


def queue_of(
    pictures: Iterable[Picture], policy: Policy, heed_unfamiliar: bool
) -> list[QueuedPicture]:
    """Returns the pictures as a policy ranks them, the most urgent first.

    Earlier decisions in the rows do not count. heed_unfamiliar: False ignores the flag of the
    feature distance, as if the checkpoint had no feature statistics. Raises as `Policy.decide`.
    """
    queued = []
    for picture in pictures:
        row = _decided_again(picture.row, policy, heed_unfamiliar)
        queued.append(QueuedPicture(picture, ranked_row(row, str(row.path))))
    return sorted(queued, key=lambda each: sort_key(each.ranked))


def status_counts(queue: Iterable[QueuedPicture], source: str) -> Counter[TriageStatus]:
    """Returns the number of pictures of a set by status."""
    return Counter(each.ranked.status for each in queue if each.picture.source == source)


def first_everyday(queue: Sequence[QueuedPicture]) -> int | None:
    """Returns the position of the first everyday picture, from 1; None without one."""
    places = (place for place, each in enumerate(queue, 1) if each.picture.everyday)
    return next(places, None)


def _decided_again(row: TriageRow, policy: Policy, heed_unfamiliar: bool) -> TriageRow:
    result = row.result
    if result is None:
        return row
    if not heed_unfamiliar:
        prediction = result.prediction.model_copy(update={"unfamiliar": None})
        result = result.model_copy(update={"prediction": prediction})
    return replace(row, result=decided(result, policy))

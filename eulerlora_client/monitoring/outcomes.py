"""Misses among confirmed outcomes: are as many lesions missed as the policy's evidence allows?

A lesion is missed if one of its images got a disposition other than urgent and unfamiliar, as in
the evidence of a policy. Images to be retaken and images without a disposition do not count.
"""

import csv
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from eulerlora_client.contract.answers import Disposition
from eulerlora_client.errors import OutcomesError
from eulerlora_client.monitoring.betting import (
    log_capital,
    sequential_lower_bound,
    sequential_upper_bound,
)
from eulerlora_client.printable import printable

DISPOSITION, LESION, POLICY_HASH = "disposition", "lesion", "policy_hash"
SHOWN_COLUMNS = 10


@dataclass(frozen=True)
class Outcome:
    """An image. disposition: None without one. confirmed: its class, "" if not known yet."""

    disposition: Disposition | None
    confirmed: str
    lesion: str
    policy_hash: str


def read_outcomes(path: Path, confirmed: str) -> list[Outcome]:
    """Returns the rows of a CSV file in their order, which must be that of time.

    The columns `disposition` and, optionally, `policy_hash` are those of `eulerlora triage --csv`.
    confirmed: name of the column with the confirmed class. A row without a value in the column
    `lesion` is a lesion of its own. Raises OutcomesError.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            rows = csv.DictReader(file)
            _check_columns(path, rows.fieldnames or (), confirmed)
            outcomes = [_outcome(row, f"{path}, line {rows.line_num}", confirmed) for row in rows]
    except csv.Error as error:
        raise OutcomesError(f"{path}: expected CSV ({error})") from error
    except OSError as error:
        raise OutcomesError(f"{path}: cannot be read ({error.strerror})") from error
    if not outcomes:
        raise OutcomesError(f"{path}: expected at least one row below the header")
    return outcomes


def check_decided_by(path: Path, outcomes: Iterable[Outcome], policy_hash: str) -> None:
    """Raises OutcomesError if a row was decided by another policy."""
    for other in {row.policy_hash for row in outcomes} - {"", policy_hash}:
        raise OutcomesError(
            f"{path}: expected decisions of the policy {policy_hash}, got {printable(other)}"
        )


def _check_columns(path: Path, columns: Sequence[str], confirmed: str) -> None:
    missing = [name for name in (DISPOSITION, confirmed) if name not in columns]
    if missing:
        noun = "column" if len(missing) == 1 else "columns"
        shown = printable(", ".join(columns[:SHOWN_COLUMNS])) or "an empty file"
        raise OutcomesError(f"{path}: expected the {noun} {', '.join(missing)}, got {shown}")


def _outcome(row: dict[str, str], place: str, confirmed: str) -> Outcome:
    """Returns a row. place: the file and the number of the line."""
    disposition = _cell(row, DISPOSITION)
    if disposition and disposition not in set(Disposition):
        names = ", ".join(Disposition)
        raise OutcomesError(
            f"{place}: expected a disposition ({names}), got {printable(disposition)}"
        )
    return Outcome(
        disposition=Disposition(disposition) if disposition else None,
        confirmed=_cell(row, confirmed),
        lesion=_cell(row, LESION) or place,
        policy_hash=_cell(row, POLICY_HASH),
    )


def _cell(row: dict[str, str], column: str) -> str:
    """Returns a value without spaces around it; "" in a short row and for a missing column."""
    return (row.get(column) or "").strip()


SHOWN_CLASSES = 10
SEEN = {Disposition.URGENT, Disposition.UNFAMILIAR}


class LesionOutcome(Enum):
    """What happened to a lesion, judged by its assessed images."""

    URGENT = "all urgent"
    UNFAMILIAR = "all urgent or unfamiliar, at least one unfamiliar"
    MISSED = "at least one neither urgent nor unfamiliar"
    NOT_ASSESSED = "no assessed image"


@dataclass(frozen=True)
class Promise:
    """The tested hypothesis: a lesion of class `target` is missed with at most `tolerated`.

    tolerated: probability, 0 to 1, exclusive. confidence: of the test and of each bound.
    """

    target: str
    tolerated: float
    confidence: float


@dataclass(frozen=True)
class OutcomeSummary:
    """The lesions that were confirmed as the target, and bounds of the probability of a miss.

    counts: lesions by outcome. lower, upper: one-sided bounds; each holds with the confidence of
    the promise, however often and whenever it is computed. alarm_at: number of the assessed lesion
    at which the hypothesis was rejected; None if it was not.
    """

    counts: Counter[LesionOutcome]
    lower: float
    upper: float
    alarm_at: int | None

    @property
    def assessed(self) -> int:
        """The number of lesions with an assessed image."""
        return self.counts.total() - self.counts[LesionOutcome.NOT_ASSESSED]


def outcome_summary(outcomes: Sequence[Outcome], promise: Promise) -> OutcomeSummary:
    """Returns the summary of the target lesions, in the order of their first images.

    Raises OutcomesError if no lesion was confirmed as the target, or one as several classes.
    """
    results = target_lesions(outcomes, promise.target)
    if not results:
        names = sorted({row.confirmed for row in outcomes} - {""})
        shown = printable(", ".join(names[:SHOWN_CLASSES])) or "no confirmed class"
        raise OutcomesError(f"expected a lesion confirmed as {promise.target}, got {shown}")
    missed = [
        result is LesionOutcome.MISSED
        for result in results
        if result is not LesionOutcome.NOT_ASSESSED
    ]
    return OutcomeSummary(
        counts=Counter(results),
        lower=sequential_lower_bound(sum(missed), len(missed), promise.confidence),
        upper=sequential_upper_bound(sum(missed), len(missed), promise.confidence),
        alarm_at=first_alarm(missed, promise),
    )


def target_lesions(outcomes: Iterable[Outcome], target: str) -> list[LesionOutcome]:
    """Returns the outcomes of the lesions that were confirmed as the target.

    An image without a confirmed class has that of its lesion's other images. Raises OutcomesError
    for a lesion with several classes.
    """
    lesions: dict[str, list[Outcome]] = {}
    for row in outcomes:
        lesions.setdefault(row.lesion, []).append(row)
    results = []
    for lesion, images in lesions.items():
        classes = {image.confirmed for image in images} - {""}
        if len(classes) > 1:
            shown = printable(
                f"lesion {lesion}: expected one class, got {', '.join(sorted(classes))}"
            )
            raise OutcomesError(shown)
        if target in classes:
            results.append(lesion_outcome(images))
    return results


def lesion_outcome(images: Iterable[Outcome]) -> LesionOutcome:
    """Returns the outcome of a lesion from its images."""
    dispositions = {image.disposition for image in images} - {None, Disposition.RETAKE}
    if not dispositions:
        return LesionOutcome.NOT_ASSESSED
    if not dispositions <= SEEN:
        return LesionOutcome.MISSED
    unfamiliar = Disposition.UNFAMILIAR in dispositions
    return LesionOutcome.UNFAMILIAR if unfamiliar else LesionOutcome.URGENT


def first_alarm(missed: Sequence[bool], promise: Promise) -> int | None:
    """Returns the number of the lesion at which the bets reject the promise, or None."""
    limit, events = -math.log1p(-promise.confidence), 0
    for trials, is_missed in enumerate(missed, start=1):
        events += is_missed
        if log_capital(events, trials, promise.tolerated) >= limit:
            return trials
    return None

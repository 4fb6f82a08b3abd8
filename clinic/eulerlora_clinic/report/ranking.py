"""Rows of a triage run in order of urgency."""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from eulerlora_clinic.language import ENGLISH, Language, message
from eulerlora_clinic.policy.results import NOT_ASSESSED, TITLES, warning_texts
from eulerlora_contract.answers import (
    FAILED,
    Disposition,
    Reason,
    ShownResult,
    TriageResult,
    TriageStatus,
    WarningCode,
    urgency,
)
from eulerlora_contract.image_formats import KINDS
from eulerlora_contract.problems import (
    SENT_BY_SERVICE,
    ConnectionLost,
    MetadataNotRemoved,
    Problem,
    TimedOut,
    UnexpectedAnswer,
    Unreachable,
    UnreadableFile,
)

_PROBLEMS: tuple[type[Problem], ...] = (
    *SENT_BY_SERVICE, ConnectionLost, MetadataNotRemoved, TimedOut, UnexpectedAnswer, Unreachable,
    UnreadableFile,
)  # fmt: skip
PROBLEM_TITLES = {kind.code: kind.title for kind in _PROBLEMS} | {
    "not_asked": message("The run ended before the result")
}
"""By the code of a problem."""


@dataclass(frozen=True)
class RowProblem:
    """Why a file has no result.

    Attributes:
        code: For programs.
        detail: For people.
    """

    code: str
    detail: str

    def text(self, t: Language) -> str:
        """The detail in English; elsewhere the title of the code, since details have values, and
        what to do about a file of a known kind.
        """
        title = PROBLEM_TITLES.get(self.code)
        if title is None or t.tag == ENGLISH.tag:
            return self.detail
        for kind in KINDS:
            if f"{kind.name}: {kind.advice}" in self.detail:
                values = {"title": t(title), "kind": t(kind.name), "advice": t(kind.advice)}
                return t("{title}; this is {kind}: {advice}", **values)
        return t(title)


_NOTICES = (WarningCode.NO_OOD_THRESHOLD, WarningCode.DISTRIBUTION_SHIFT)
"""Codes of the warnings of answers that people must see."""
STATUS_TITLES: Mapping[TriageStatus, str] = dict([*TITLES.items(), (FAILED, NOT_ASSESSED)])
"""The title of each status, in the order of their counts."""


def reason_name(reason: Reason) -> str:
    """A reason in a word or two."""
    return reason.replace("_", " ")


@dataclass(frozen=True)
class TriageRow:
    """The outcome for one file: the result, or the problem that prevented it.

    Attributes:
        name: Path below the common folder of all rows, which `ranked` sets.
        lesion: A name that all images of a lesion share; None for an image without one.
        lesion_status: That of the most urgent image of the lesion, set by `with_lesions`.
        lesion_images: Their number, likewise.
    """

    path: Path
    result: TriageResult | None = None
    problem: RowProblem | None = None
    name: str = ""
    lesion: str | None = None
    lesion_status: TriageStatus | None = None
    lesion_images: int = 1

    @property
    def status(self) -> TriageStatus:
        return FAILED if self.result is None else self.result.disposition

    @property
    def urgency(self) -> int:
        """That of the lesion, if the image has one."""
        return urgency(self.lesion_status or self.status)

    @property
    def lesion_disposition(self) -> Disposition | None:
        """None without a lesion, and for one that is not assessed."""
        return None if self.lesion_status == FAILED else self.lesion_status

    @property
    def shown(self) -> ShownResult:
        """What people see of the result; nothing without one."""
        return ShownResult() if self.result is None else self.result.shown

    def notices(self, t: Language = ENGLISH) -> tuple[str, ...]:
        """What is not known about the thresholds, and whether the images of the service differ.

        An answer without a flag for lack of a threshold says so.
        """
        if self.result is None:
            return ()
        notice = self.result.policy.notice
        warnings = self.result.prediction.warnings
        known = warning_texts(t)
        stated = (known.get(one.code, one.message) for one in warnings if one.code in _NOTICES)
        sentences = (f"{text[:1].upper()}{text[1:]}." for text in stated)
        return (*((t(notice),) if notice else ()), *sentences)


def with_lesions(rows: Sequence[TriageRow]) -> list[TriageRow]:
    """The rows, in their order, with the status and the number of images of their lesions."""
    statuses: dict[str, list[TriageStatus]] = {}
    for row in rows:
        if row.lesion is not None:
            statuses.setdefault(row.lesion, []).append(row.status)
    most_urgent = {name: max(of_lesion, key=urgency) for name, of_lesion in statuses.items()}
    return [
        row
        if row.lesion is None
        else replace(
            row,
            lesion_status=most_urgent[row.lesion],
            lesion_images=len(statuses[row.lesion]),
        )
        for row in rows
    ]


def ranked(rows: Sequence[TriageRow]) -> list[TriageRow]:
    """Names the rows and sorts them by urgency, target probability, entropy and name.

    An image that is unlike all that the model knows comes last of its group. The rows of a lesion
    are together, where the first of them is.
    """
    names = [str(row.path) for row in rows]
    with suppress(ValueError):  # no paths, absolute and relative ones, or two slashes at the start
        folder = os.path.commonpath([row.path.parent for row in rows])
        names = [str(row.path.relative_to(folder) if folder else row.path) for row in rows]
    named = [replace(row, name=name) for row, name in zip(with_lesions(rows), names, strict=True)]

    def key(row: TriageRow) -> tuple[float, float, bool, float, str, str]:
        shown = row.shown
        target = math.inf if shown.target is None else -shown.target
        entropy = math.inf if shown.figures is None else -shown.figures.entropy
        is_far = any(reason.code == Reason.FAR for reason in shown.reasons)
        return -urgency(row.status), target, is_far, entropy, row.name.casefold(), row.name

    rows_of_lesions: dict[str | int, list[TriageRow]] = {}
    for place, row in enumerate(sorted(named, key=key)):
        rows_of_lesions.setdefault(place if row.lesion is None else row.lesion, []).append(row)
    return [row for of_lesion in rows_of_lesions.values() for row in of_lesion]


def first_of_lesions(rows: Sequence[TriageRow]) -> list[TriageRow]:
    """The first row of each lesion, and the rows without one; of `ranked` ones, the most urgent."""
    seen: set[str] = set()
    first = []
    for row in rows:
        if row.lesion not in seen:
            first.append(row)
        if row.lesion is not None:
            seen.add(row.lesion)
    return first


def counts_by_status(rows: Sequence[TriageRow]) -> dict[TriageStatus, int]:
    counts = Counter(row.status for row in rows)
    return {status: counts[status] for status in STATUS_TITLES}

"""Monitors of a running service: shifts of its pictures, and misses among confirmed outcomes.

Both use the sequential tests and bounds of `sequential_tests`. Pictures of one lesion resemble each
other, so that a trial is a lesion or a block of pictures, never a picture.
"""

import csv
import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import accumulate, chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from eulerlora_clinic.sequential_tests import (
    ChangeTest,
    calibration_upper_bound,
    log_capital,
    sequential_lower_bound,
    sequential_upper_bound,
)
from eulerlora_contract.answers import (
    Disposition,
    ModelShift,
    Reason,
    RecordedDecision,
    ShiftSignal,
)
from eulerlora_contract.checkpoints import Unit
from eulerlora_contract.errors import OutcomesError
from eulerlora_contract.printable import printable
from eulerlora_contract.tables import read_rows

_PICTURES_PER_FALSE_ALARM = 1_000_000
"""Mean number of pictures to an alarm without a shift, at least, if blocks are independent."""
_BLOCK = 8
"""Consecutive pictures of a trial. Pictures of one lesion come close together: as trials of their
own, four equal ones would raise a false alarm within a few hundred pictures.
"""

_CALIBRATION_CONFIDENCE = 0.99
_TOLERATED_ODDS_RATIO = 1.25


@dataclass(frozen=True)
class EventRate:
    """The probability of an event.

    Attributes:
        expected: Among calibration pictures.
        tolerated: The highest tolerated one.
    """

    expected: float
    tolerated: float

    @classmethod
    def calibrated(cls, share: float, images: int) -> Self:
        """The rate for an event that a share of the calibration images shows.

        The tolerated odds are 1.25 times those of the 99% upper bound of the share: a smaller shift
        does not matter, and calibration images are few.
        """
        bound = calibration_upper_bound(share, images, _CALIBRATION_CONFIDENCE)
        raised = _TOLERATED_ODDS_RATIO * bound
        return cls(share, raised / (raised + 1 - bound))


class ShiftMonitor:
    """Tests several signals of a stream of pictures for a shift; stores nothing per picture.

    A picture shows at most one of the events of a signal. Every event has a `ChangeTest`, whose
    trials are blocks of _BLOCK pictures with the signal. An alarm needs a statistic of
    _PICTURES_PER_FALSE_ALARM / _BLOCK times the number of tests (Bonferroni), weighted so that all
    signals count alike. An alarm stays on.

    Args:
        signals: The rates of the events of each signal, by name, for the usual options.
        labels: Of the events of signals, by name, if they are classes.
    """

    def __init__(
        self,
        signals: Mapping[str, Sequence[EventRate]],
        labels: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self._limit = _PICTURES_PER_FALSE_ALARM / _BLOCK * len(signals)
        self._labels = labels
        self._rates = dict(signals)  # for the options of the last picture
        self._tests = {name: [ChangeTest() for _ in rates] for name, rates in signals.items()}
        self._pictures = 0
        self._counts: Counter[str] = Counter()  # of the pictures with a signal
        self._events = {name: Counter[int]() for name in signals}
        # By event, the sum of 1 / tolerated over the pictures of the current block that show it.
        self._blocks = {name: defaultdict[int, float](float) for name in signals}
        self._alarms: set[str] = set()

    @property
    def alarm(self) -> bool:
        return bool(self._alarms)

    def record(
        self, events: Mapping[str, int | None], rates: Mapping[str, Sequence[EventRate]]
    ) -> None:
        """Records a picture.

        `events` has the index of its event for each signal that could be computed, None without an
        event, and `rates` those of all events of these signals, for the options of this picture.
        """
        self._pictures += 1
        for name, event in events.items():
            self._counts[name] += 1
            self._rates[name] = rates[name]
            if event is not None:
                self._events[name][event] += 1
                self._blocks[name][event] += 1 / rates[name][event].tolerated
            if self._counts[name] % _BLOCK == 0:
                self._complete_block(name)

    def _complete_block(self, name: str) -> None:
        tests, trials = self._tests[name], self._counts[name] // _BLOCK
        for event, total in self._blocks[name].items():
            tests[event].record(trials, total / _BLOCK)
            if self._log_evidence(name, tests[event]) >= math.log(self._limit):
                self._alarms.add(name)
        self._blocks[name].clear()

    def state(self) -> ModelShift:
        return ModelShift(
            pictures=self._pictures,
            alarm=self.alarm,
            limit=math.log10(self._limit + 1),
            signals=tuple(map(self._signal, self._tests)),
        )

    def _signal(self, name: str) -> ShiftSignal:
        """By the event with the most evidence: log10(1 + M / N), M of `ChangeTest`, N events.

        Before the first block is complete, by the one that exceeds its rate most.
        """
        tests, labels, rates = self._tests[name], self._labels.get(name), self._rates[name]
        counts = self._events[name]
        evidence = [self._log_evidence(name, test) for test in tests]
        event = max(range(len(tests)), key=lambda e: (evidence[e], counts[e] / rates[e].tolerated))
        rate = rates[event]
        return ShiftSignal(
            name=name,
            label=None if labels is None else labels[event],
            pictures=self._counts[name],
            rate=counts[event] / max(self._counts[name], 1),
            expected=rate.expected,
            tolerated=rate.tolerated,
            evidence=_log1p_exp(evidence[event]) / math.log(10),
            alarm=name in self._alarms,
        )

    def _log_evidence(self, name: str, test: ChangeTest) -> float:
        trials = self._counts[name] // _BLOCK
        return test.log_statistic(trials) - math.log(len(self._tests[name]))


def _log1p_exp(log: float) -> float:
    """log(1 + exp(log)) without overflow."""
    return max(log, 0.0) + math.log1p(math.exp(-abs(log)))


_LOG_START = b'{"format":'
PROBABILITY_COLUMN = "p_"
"""Begins the name of a column of `eulerlora triage --csv`; a class of the model follows."""
_SHOWN_COLUMNS = 10


@dataclass(frozen=True)
class Outcome:
    """An image with its disposition and, once it is known, its class.

    Attributes:
        disposition: None without one.
        is_target_possible: True if the target probability reaches the routine threshold, which is
            one of the reasons of a referred image.
        confirmed: Its class, "" if not known yet.
        lesion: Equal for all images of a lesion.
        names_lesion: False if the data do not say which lesion the image shows.
        decided_with: Images of a lesion with the same value got one disposition together.
        policy_hash: Of the policy that decided, "" if not known.
        place: The request id, with the index of a batch; or file and line.
        classes: Of the model; none if the file does not name them.
    """

    disposition: Disposition | None
    is_target_possible: bool
    confirmed: str
    lesion: str
    decided_with: str
    policy_hash: str
    place: str
    classes: frozenset[str]
    names_lesion: bool = True


def read_outcomes(path: Path, confirmed: str) -> list[Outcome]:
    """Reads the rows of a CSV file in their order, which must be that of time.

    The columns `disposition`, `reasons` and, optionally, `policy_hash` are those of `eulerlora
    triage --csv`, as are `request_id` and the probabilities of the classes; `confirmed` names that
    with the confirmed class. A row without a value in the column `lesion` is a lesion of its own.
    Rows of a lesion with the same `lesion_disposition` got it together. The format is that of
    `read_rows`.

    Raises:
        OutcomesError: For a file that cannot be read, or without these columns or rows.
    """
    try:
        rows = read_rows(path)
        columns = rows.fieldnames or ()
        missing = [name for name in ("disposition", "reasons", confirmed) if name not in columns]
        if missing:
            noun = "column" if len(missing) == 1 else "columns"
            shown = printable(", ".join(columns[:_SHOWN_COLUMNS])) or "an empty file"
            raise OutcomesError(f"{path}: expected the {noun} {', '.join(missing)}, got {shown}")
        classes = frozenset(
            name.removeprefix(PROBABILITY_COLUMN)
            for name in columns
            if name.startswith(PROBABILITY_COLUMN)
        )
        outcomes = [
            _outcome(row, f"{path}, line {rows.line_num}", confirmed, classes) for row in rows
        ]
    except csv.Error as error:
        raise OutcomesError(f"{path}: expected CSV ({error})") from error
    except OSError as error:
        raise OutcomesError(f"{path}: cannot be read ({error.strerror})") from error
    if not outcomes:
        raise OutcomesError(f"{path}: expected at least one row below the header")
    return outcomes


@dataclass(frozen=True)
class LoggedAnswer:
    """An answer of `/triage` in an audit log: what was decided about it, and its outcome.

    The lesion of the outcome is a keyed hash of one of its files. Images that were sent as one
    lesion are one, and so is the same file again.
    """

    decided: RecordedDecision
    outcome: Outcome


def is_audit_log(path: Path) -> bool:
    """True if a file begins as an audit log.

    Raises:
        OutcomesError: If it is unreadable.
    """
    try:
        with path.open("rb") as file:
            return file.read(len(_LOG_START)) == _LOG_START
    except OSError as error:
        raise OutcomesError(f"{path}: cannot be read ({error.strerror})") from error


@dataclass(frozen=True)
class LogFile:
    """The place of a file in an audit log.

    Attributes:
        time: Of its first record, as `sequence` and `previous`.
        last_mac: `mac` of its last record.
    """

    time: str
    sequence: int
    previous: str
    last_mac: str

    @classmethod
    def of(cls, first: Mapping[str, Any], last_mac: str) -> Self:
        """The place by the first record of a file.

        Raises:
            KeyError: As TypeError and ValueError, for another record than of an audit log.
        """
        names = str(first["time"]), int(first["sequence"]), str(first["previous"])
        return cls(*names, last_mac)


def oldest_first(files: Mapping[Path, LogFile]) -> list[Path]:
    """Orders files of audit logs.

    A file is later than the one that it continues, whatever their times are: the clock may have
    been set back. Files of different logs are ordered by their times.
    """
    by_last = {file.last_mac: file for file in files.values()}

    def key(path: Path) -> tuple[str, int]:
        file = files[path]
        time = file.time
        while (before := by_last.get(file.previous)) and before.sequence < file.sequence:
            time, file = max(time, before.time), before
        return time, files[path].sequence

    return sorted(files, key=key)


def read_logs(paths: Iterable[Path]) -> list[LoggedAnswer]:
    """The answers of `/triage` in audit logs, in the order in which they were written.

    Reads without the secret: `eulerlora audit verify` checks the files.

    Args:
        paths: The files of one log, in any order.

    Raises:
        OutcomesError: For a file that is no audit log or cannot be read.
    """
    files: dict[Path, LogFile] = {}
    kept: dict[Path, list[Mapping[str, Any]]] = {}  # the records of answers and decisions
    for path in paths:
        try:
            with path.open("rb") as file:
                for line in file:
                    if not line.endswith(b"\n"):  # the service is writing it
                        continue
                    record = json.loads(line)
                    if path not in files:
                        files[path] = LogFile.of(record, "")
                    files[path] = replace(files[path], last_mac=str(record["mac"]))
                    is_answer = record["kind"] == "answer" and record["triage"] is not None
                    if is_answer or record["kind"] == "decision":
                        kept.setdefault(path, []).append(record)
        except OSError as error:
            raise OutcomesError(f"{path}: cannot be read ({error.strerror})") from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise OutcomesError(f"{path}: expected an audit log of this version") from error
    records = [record for path in oldest_first(files) for record in kept.get(path, ())]
    answers = {record["mac"]: record for record in records if record["kind"] == "answer"}
    decisions: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if record["kind"] == "decision":
            decisions.setdefault(record["answer"], []).append(record)
    lesions = _lesions(answers.values())
    logged = []
    for answer in answers.values():
        of_answer = decisions.get(answer["mac"], ())
        decided, triage = RecordedDecision.of(answer, of_answer), answer["triage"]
        outcome = Outcome(
            decided.disposition,
            Reason.TARGET_POSSIBLE in triage["reasons"],
            decided.diagnosis or "",
            lesion=lesions[answer["image"]],
            decided_with=answer["lesion"] or answer["mac"],
            policy_hash=triage["policy_hash"],
            place=answer["item_id"] or answer["request_id"],
            classes=frozenset(answer["probabilities"]),
        )
        logged.append(LoggedAnswer(decided, outcome))
    return logged


def _lesions(answers: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The lesion of each image, as the lowest hash of its images; images by their hashes."""
    together: dict[str, list[str]] = {}
    for answer in answers:
        together.setdefault(answer["lesion"] or answer["mac"], []).append(answer["image"])
    lesions: dict[str, set[str]] = {}
    for images in together.values():
        lesion = set[str]().union(*(lesions.get(image, {image}) for image in images))
        lesions |= dict.fromkeys(lesion, lesion)
    return {image: min(lesion) for image, lesion in lesions.items()}


def check_decided_by(path: Path, outcomes: Iterable[Outcome], policy_hash: str) -> None:
    """Checks the policy of the rows, where they name it.

    Raises:
        OutcomesError: If a row was decided by another policy.
    """
    for other in {row.policy_hash for row in outcomes} - {"", policy_hash}:
        raise OutcomesError(
            f"{path}: expected decisions of the policy {policy_hash}, got {printable(other)}; name "
            "the file of that policy with --policy"
        )


def _outcome(row: dict[str, str], place: str, confirmed: str, classes: frozenset[str]) -> Outcome:
    """`place`, the file and the line, stands for a missing lesion or request id.

    Raises:
        OutcomesError: With `place`, for an unknown disposition.
    """
    disposition, together = (_cell(row, name) for name in ("disposition", "lesion_disposition"))
    if disposition and disposition not in set(Disposition):
        names = ", ".join(Disposition)
        raise OutcomesError(
            f"{place}: expected a disposition ({names}), got {printable(disposition)}"
        )
    named = _cell(row, "lesion")
    lesion = named or place
    return Outcome(
        disposition=Disposition(disposition) if disposition else None,
        is_target_possible=Reason.TARGET_POSSIBLE in _cell(row, "reasons"),
        confirmed=_cell(row, confirmed),
        lesion=lesion,
        decided_with=f"{lesion} {together}" if together else place,
        policy_hash=_cell(row, "policy_hash"),
        place=_cell(row, "request_id") or place,
        classes=classes,
        names_lesion=bool(named),
    )


def _cell(row: dict[str, str], column: str) -> str:
    """A short row and a missing column have none."""
    return (row.get(column) or "").strip()


class LesionOutcome(IntEnum):
    """What happened to an image, or to a lesion.

    Images that got one disposition together have that of the most urgent of them. A lesion that was
    sent several times counts by the least urgent disposition. Images that were not assessed do not
    count.
    """

    MISSED = 0
    REFERRED = 1
    """By the target probability."""
    UNFAMILIAR = 2
    URGENT = 3
    NOT_ASSESSED = 4


@dataclass(frozen=True)
class Promise:
    """The tested hypothesis: a lesion of `classes` is missed with at most `tolerated`.

    Attributes:
        tolerated: In (0, 1).
        confidence: Of the test and of each bound.
        also: A word for the first class in confirmed diagnoses, such as the name of the group.
    """

    classes: tuple[str, ...]
    tolerated: float
    confidence: float
    also: str = ""

    @property
    def title(self) -> str:
        return " or ".join(self.classes)


@dataclass(frozen=True)
class OutcomeSummary:
    """The lesions that were confirmed as the target, and bounds of the probability of a miss.

    Attributes:
        counts: Lesions by outcome.
        lower: One-sided lower bound; it holds with the confidence of the promise, however often and
            whenever it is computed.
        upper: The upper bound, likewise.
        alarm_at: Number of the assessed lesion at which the hypothesis was rejected; None if it was
            not.
        unit: "picture" if the data name no lesions, so that every picture counts.
        others: Lesions by another confirmed class.
        unknown: Those of `others` that are no classes of the model, if the file names these.
    """

    counts: Counter[LesionOutcome]
    lower: float
    upper: float
    alarm_at: int | None
    unit: Unit
    others: Counter[str]
    unknown: Counter[str]

    @property
    def assessed(self) -> int:
        """The number of lesions with an assessed image."""
        return self.counts.total() - self.counts[LesionOutcome.NOT_ASSESSED]


def outcome_summary(outcomes: Sequence[Outcome], promise: Promise) -> OutcomeSummary:
    """Summarises the target lesions, in the order of their first images.

    Diagnoses are classes without regard to case, unless classes differ in case alone.

    Raises:
        OutcomesError: If a lesion was confirmed as several classes.
    """
    of_files = frozenset[str]().union(*(row.classes for row in outcomes))
    spellings = Counter(name.casefold() for name in of_files or {*promise.classes})

    def key(name: str) -> str:
        return name if spellings[name.casefold()] > 1 else name.casefold()

    classes = {key(name): name for name in (*of_files, *promise.classes)}
    classes.setdefault(key(promise.also), promise.classes[0] if promise.also else "")
    outcomes = [
        replace(row, confirmed=classes.setdefault(key(row.confirmed), row.confirmed))
        for row in outcomes
    ]
    results = _target_lesions(outcomes, promise.classes)
    confirmed = dict.fromkeys((row.lesion, row.confirmed) for row in outcomes if row.confirmed)
    others = Counter(name for _, name in confirmed if name not in promise.classes)
    known = of_files or others.keys()
    missed = [
        result is LesionOutcome.MISSED
        for result in results
        if result is not LesionOutcome.NOT_ASSESSED
    ]
    limit = -math.log1p(-promise.confidence)
    alarms = (
        lesions
        for lesions, misses in enumerate(accumulate(missed), start=1)
        if log_capital(misses, lesions, promise.tolerated) >= limit
    )
    return OutcomeSummary(
        counts=Counter(results),
        lower=sequential_lower_bound(sum(missed), len(missed), promise.confidence),
        upper=sequential_upper_bound(sum(missed), len(missed), promise.confidence),
        alarm_at=next(alarms, None),
        unit="picture" if outcomes and not any(row.names_lesion for row in outcomes) else "lesion",
        others=others,
        unknown=Counter({name: count for name, count in others.items() if name not in known}),
    )


def _target_lesions(outcomes: Iterable[Outcome], target: Collection[str]) -> list[LesionOutcome]:
    """The outcomes of the lesions that were confirmed as the target.

    An image without a confirmed class has that of its lesion's other images.

    Raises:
        OutcomesError: For a lesion with several classes.
    """
    lesions: dict[str, dict[str, list[Outcome]]] = {}
    for row in outcomes:
        lesions.setdefault(row.lesion, {}).setdefault(row.decided_with, []).append(row)
    results = []
    for lesion, groups in lesions.items():
        classes: dict[str, list[str]] = {}
        for image in chain(*groups.values()):
            if image.confirmed:
                classes.setdefault(image.confirmed, []).append(image.place)
        if len(classes) > 1:
            got = (f"{name} in {', '.join(classes[name])}" for name in sorted(classes))
            raise OutcomesError(
                printable(f"lesion {lesion}: expected one class, got {'; '.join(got)}")
            )
        if classes.keys() & set(target):
            results.append(min(map(_group_outcome, groups.values())))
    return results


def _group_outcome(images: Iterable[Outcome]) -> LesionOutcome:
    assessed = set(map(_image_outcome, images)) - {LesionOutcome.NOT_ASSESSED}
    return max(assessed, default=LesionOutcome.NOT_ASSESSED)


def _image_outcome(image: Outcome) -> LesionOutcome:
    match image.disposition:
        case None | Disposition.RETAKE:
            return LesionOutcome.NOT_ASSESSED
        case Disposition.URGENT:
            return LesionOutcome.URGENT
        case Disposition.UNFAMILIAR:
            return LesionOutcome.UNFAMILIAR
    return LesionOutcome.REFERRED if image.is_target_possible else LesionOutcome.MISSED

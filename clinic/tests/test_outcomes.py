"""Files of outcomes: which lesions are missed, and when that is an alarm."""

import csv
import math
from itertools import count
from pathlib import Path

import pytest

from clinic.tests.runs import decided, mel_policy
from eulerlora_clinic.monitoring import (
    LesionOutcome,
    Outcome,
    Promise,
    check_decided_by,
    outcome_summary,
    read_outcomes,
)
from eulerlora_clinic.report.exports import Outputs
from eulerlora_clinic.sequential_tests import log_capital, sequential_lower_bound
from eulerlora_contract.answers import Disposition, Reason
from eulerlora_contract.errors import OutcomesError

PROMISE = Promise(("mel",), 0.05, 0.95)
HEADER = b"disposition,reasons,confirmed\n"


SITE = Path(__file__).parents[1] / "docs" / "site.md"
POSSIBLE = "refer target_possible"


_ALONE = count()


def image(
    disposition: str | None,
    confirmed: str = "mel",
    lesion: str = "1",
    decided_with: str | None = None,
) -> Outcome:
    """Returns an image; disposition: POSSIBLE is `refer` by the target probability."""
    name, _, reason = (disposition or "").partition(" ")
    known, together = Disposition(name) if name else None, decided_with or str(next(_ALONE))
    return Outcome(known, bool(reason), confirmed, lesion, together, "")


def lesions(*dispositions: str) -> list[Outcome]:
    return [image(name, lesion=str(index)) for index, name in enumerate(dispositions)]


def written(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize(
    ("dispositions", "expected"),
    [
        (["urgent", "urgent"], LesionOutcome.URGENT),
        (["urgent", "unfamiliar"], LesionOutcome.UNFAMILIAR),
        (["unfamiliar"], LesionOutcome.UNFAMILIAR),
        (["urgent", "unfamiliar", POSSIBLE], LesionOutcome.REFERRED),
        ([POSSIBLE, "refer"], LesionOutcome.MISSED),
        (["urgent", "routine"], LesionOutcome.MISSED),
        (["unfamiliar", "refer"], LesionOutcome.MISSED),
        (["urgent", "retake", None], LesionOutcome.URGENT),
        (["retake", None], LesionOutcome.NOT_ASSESSED),
    ],
)
def test_a_lesion_has_the_least_outcome_of_its_assessed_images(
    dispositions: list[str | None], expected: LesionOutcome
) -> None:
    assert outcome_summary([*map(image, dispositions)], PROMISE).counts == {expected: 1}


@pytest.mark.parametrize(
    ("together", "alone", "expected"),
    [
        (["routine", "urgent", "unfamiliar"], [], LesionOutcome.URGENT),
        (["routine", POSSIBLE, "retake"], [], LesionOutcome.REFERRED),
        (["retake", None], [], LesionOutcome.NOT_ASSESSED),
        (["routine", "urgent"], ["unfamiliar"], LesionOutcome.UNFAMILIAR),
        (["routine", "urgent"], ["routine"], LesionOutcome.MISSED),
        (["retake"], ["unfamiliar"], LesionOutcome.UNFAMILIAR),
    ],
)
def test_images_that_got_one_disposition_have_the_outcome_of_the_most_urgent(
    together: list[str | None], alone: list[str | None], expected: LesionOutcome
) -> None:
    rows = [image(name, decided_with="together") for name in together]
    assert outcome_summary([*rows, *map(image, alone)], PROMISE).counts == {expected: 1}


def test_a_lesion_counts_once_with_all_its_images() -> None:
    rows = [
        image("urgent"),
        image("routine", confirmed="nv", lesion="2"),
        image("routine", confirmed=""),
        image("urgent", lesion="3"),
    ]
    expected = {LesionOutcome.MISSED: 1, LesionOutcome.URGENT: 1}
    assert outcome_summary(rows, PROMISE).counts == expected


def test_a_lesion_with_two_classes_is_an_error() -> None:
    rows = [image("urgent", "mel", "a\n1"), image("urgent", "nv", "a\n1")]
    with pytest.raises(OutcomesError, match=r"a\\n1: .* mel, nv"):
        outcome_summary(rows, PROMISE)


def test_the_alarm_is_set_when_the_lower_bound_exceeds_the_tolerated_share() -> None:
    rows = lesions(*["urgent"] * 10, *["routine"] * 5, *["urgent"] * 400)
    summary = outcome_summary(rows, PROMISE)
    bounds = [sequential_lower_bound(missed, 10 + missed, 0.95) for missed in range(6)]
    first = next(missed for missed, bound in enumerate(bounds) if bound > 0.05)
    assert summary.alarm_at == 10 + first
    assert summary.lower < 0.05
    assert log_capital(first, 10 + first, 0.05) >= math.log(20)


def test_few_misses_give_no_alarm_and_lesions_without_images_do_not_count() -> None:
    rows = lesions(*["urgent"] * 60, "routine", "unfamiliar", "retake", *["urgent"] * 60)
    summary = outcome_summary(rows, PROMISE)
    assert summary.alarm_at is None
    assert summary.assessed == 122
    assert summary.counts[LesionOutcome.NOT_ASSESSED] == 1
    assert 0 < summary.lower < 1 / 122 < summary.upper < 0.1


def test_a_target_that_no_lesion_has_is_an_error_that_lists_the_classes() -> None:
    with pytest.raises(OutcomesError, match=r"mel, .* akiec, nv"):
        outcome_summary([image("urgent", "nv", "1"), image("urgent", "akiec", "2")], PROMISE)
    with pytest.raises(OutcomesError):
        outcome_summary([image("urgent", "")], PROMISE)


def test_a_file_has_the_columns_of_the_export(tmp_path: Path) -> None:
    reasons = (Reason.TARGET_POSSIBLE, Reason.HIGH_ENTROPY)
    exported = tmp_path / "rows.csv"
    Outputs(exported, None, None).write(
        [decided("a.png", Disposition.REFER, 0.2, *reasons)], mel_policy()
    )
    (row,) = csv.DictReader(exported.read_text("utf-8-sig").splitlines())
    empty = {"disposition": "", "reasons": "", "dx": ""}
    path = written(tmp_path / "o.csv", row | {"dx": " mel "}, row | empty)
    first, second = read_outcomes(path, "dx")
    expected = (first.lesion, first.decided_with, "sha256:1")
    assert first == Outcome(Disposition.REFER, True, "mel", *expected, names_lesion=False)
    assert (second.disposition, second.is_target_possible, second.confirmed) == (None, False, "")
    assert first.lesion != second.lesion
    assert first.decided_with != second.decided_with
    check_decided_by(path, [first, second], "sha256:1")
    with pytest.raises(OutcomesError, match=r"o\.csv: .*sha256:1"):
        check_decided_by(path, [first, second], "sha256:2")


def test_rows_of_a_lesion_with_one_disposition_of_the_lesion_got_it_together(
    tmp_path: Path,
) -> None:
    row = {"disposition": "urgent", "reasons": "", "confirmed": "mel", "lesion": "7"}
    states = ("urgent", "urgent", "routine", "", "")
    rows = read_outcomes(
        written(tmp_path / "o.csv", *(row | {"lesion_disposition": state} for state in states)),
        "confirmed",
    )
    assert {one.lesion for one in rows} == {"7"}
    first, second, *others = (one.decided_with for one in rows)
    assert first == second
    assert len({first, *others}) == 4


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "disposition, reasons, confirmed"),
        (b"file,reasons,disposition\n", "confirmed"),
        (HEADER, "row"),
        (HEADER + b"urgent,,mel\nUrgent,,mel\n", "line 3"),
        (b"\x89PNG\x00\x01,\xff\n", ""),
        (HEADER + b'"urgent\x00,,mel\n', ""),
        (HEADER + b"u" * 200_000 + b",,mel\n", "CSV"),
    ],
)
def test_a_file_of_another_kind_is_one_clear_line(
    tmp_path: Path, content: bytes, named: str
) -> None:
    path = tmp_path / "o.csv"
    path.write_bytes(content)
    with pytest.raises(OutcomesError, match=rf"o\.csv.*{named}") as caught:
        read_outcomes(path, "confirmed")
    assert "\n" not in str(caught.value)


def test_the_sample_rows_of_the_documentation_are_read(tmp_path: Path) -> None:
    _, header, rest = SITE.read_text(encoding="utf-8").partition("lesion,disposition,")
    rows = header + rest.partition("```")[0]
    (tmp_path / "rows.csv").write_text("\n".join(line.strip() for line in rows.splitlines()))
    outcomes = read_outcomes(tmp_path / "rows.csv", "confirmed")
    summary = outcome_summary(outcomes, PROMISE)
    assert (len(outcomes), summary.assessed) == (2, 1)

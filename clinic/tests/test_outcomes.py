"""`eulerlora monitor` on files of outcomes: which lesions are missed, and when that is an alarm."""

import csv
import math
from pathlib import Path

import pytest

from clinic.tests.runs import decided, mel_policy
from eulerlora_clinic.report.exports import Outputs
from eulerlora_clinic.sequential_tests import log_capital, sequential_lower_bound
from eulerlora_contract.answers import Disposition, Reason
from tests.program import refusal, run, succeed

HEADER = b"disposition,reasons,confirmed\n"
SITE = Path(__file__).parents[1] / "docs" / "site.md"
POSSIBLE = "refer target_possible"
MISSED, REFERRED, UNFAMILIAR = "missed", "referred by the target", "unfamiliar, seen by a person"
NOT_ASSESSED = "not assessed (retake or no decision)"

Row = dict[str, str]


def image(
    disposition: str | None, confirmed: str = "mel", lesion: str = "1", together: str = ""
) -> Row:
    """Returns a row; disposition: POSSIBLE is `refer` by the target probability."""
    name, _, reason = (disposition or "").partition(" ")
    return {
        "disposition": name, "reasons": reason, "confirmed": confirmed, "lesion": lesion,
        "lesion_disposition": together,
    }  # fmt: skip


def lesions(*dispositions: str) -> list[Row]:
    return [image(name, lesion=str(index)) for index, name in enumerate(dispositions)]


def written(folder: Path, *rows: Row) -> Path:
    path = folder / "o.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def counts(path: Path, *options: str) -> dict[str, int]:
    """The lesions that the monitor of the packaged policy counts, by outcome."""
    lines = run("monitor", path, *options).out.splitlines()[1:6]
    named = (line.strip().rpartition(": ") for line in lines)
    return {name: int(count) for name, _, count in named if int(count)}


@pytest.mark.parametrize(
    ("dispositions", "expected"),
    [
        (["urgent", "urgent"], "urgent"),
        (["urgent", "unfamiliar"], UNFAMILIAR),
        (["unfamiliar"], UNFAMILIAR),
        (["urgent", "unfamiliar", POSSIBLE], REFERRED),
        ([POSSIBLE, "refer"], MISSED),
        (["urgent", "routine"], MISSED),
        (["unfamiliar", "refer"], MISSED),
        (["urgent", "retake", None], "urgent"),
        (["retake", None], NOT_ASSESSED),
    ],
)
def test_a_lesion_has_the_least_outcome_of_its_assessed_images(
    tmp_path: Path, dispositions: list[str | None], expected: str
) -> None:
    assert counts(written(tmp_path, *map(image, dispositions))) == {expected: 1}


@pytest.mark.parametrize(
    ("together", "alone", "expected"),
    [
        (["routine", "urgent", "unfamiliar"], [], "urgent"),
        (["routine", POSSIBLE, "retake"], [], REFERRED),
        (["retake", None], [], NOT_ASSESSED),
        (["routine", "urgent"], ["unfamiliar"], UNFAMILIAR),
        (["routine", "urgent"], ["routine"], MISSED),
        (["retake"], ["unfamiliar"], UNFAMILIAR),
    ],
)
@pytest.mark.parametrize("of_others", ["", "routine"])
def test_images_that_got_one_disposition_have_the_outcome_of_the_most_urgent(
    tmp_path: Path,
    together: list[str | None],
    alone: list[str | None],
    expected: str,
    of_others: str,
) -> None:
    """Rows of a lesion with the same disposition of the lesion got it together."""
    rows = [image(name, together="urgent") for name in together]
    others = [image(name, together=of_others) for name in alone]
    assert counts(written(tmp_path, *rows, *others)) == {expected: 1}


def test_a_lesion_counts_once_with_all_its_images(tmp_path: Path) -> None:
    rows = [
        image("urgent"),
        image("routine", confirmed="nv", lesion="2"),
        image("routine", confirmed=""),
        image("urgent", lesion="3"),
    ]
    assert counts(written(tmp_path, *rows)) == {MISSED: 1, "urgent": 1}


def test_a_lesion_with_two_classes_is_an_error(tmp_path: Path) -> None:
    rows = [image("urgent", name, "a\n1") for name in ("mel", "nv", "mel", "")]
    line = refusal("monitor", written(tmp_path, *rows))
    path = tmp_path / "o.csv"
    assert rf"a\n1: expected one class, got mel in {path}, line " in line
    sent = [row | {"request_id": f"r{number}"} for number, row in enumerate(rows)]
    assert "got mel in r0, r2; nv in r1" in refusal("monitor", written(tmp_path, *sent))


def test_the_alarm_is_set_when_the_lower_bound_exceeds_the_tolerated_share(tmp_path: Path) -> None:
    rows = lesions(*["urgent"] * 10, *["routine"] * 5, *["urgent"] * 400)
    done = run("monitor", written(tmp_path, *rows), "--wanted", "0.95")
    bounds = [sequential_lower_bound(missed, 10 + missed, 0.95) for missed in range(6)]
    first = next(missed for missed, bound in enumerate(bounds) if bound > 0.05)
    assert f"ALARM at lesion {10 + first}: " in done.err
    lower = sequential_lower_bound(5, 415, 0.95)
    assert lower < 0.05
    assert f"at least {lower:.4f} and" in done.out
    assert log_capital(first, 10 + first, 0.05) >= math.log(20)


def test_few_misses_give_no_alarm_and_lesions_without_images_do_not_count(tmp_path: Path) -> None:
    rows = lesions(*["urgent"] * 60, "routine", "unfamiliar", "retake", *["urgent"] * 60)
    done = succeed("monitor", written(tmp_path, *rows))
    assert "lesions confirmed as mel: 123\n" in done.out
    assert f"  {NOT_ASSESSED}: 1\n" in done.out
    assert done.out.splitlines()[-1].startswith("policy: version ")
    assert f"miss rate: {1 / 122:.4f}, at least " in done.out


@pytest.mark.parametrize("name", ["mel", "MEL", "Melanoma"])
def test_a_class_counts_in_any_case_and_by_the_name_of_the_critical_ones(
    name: str, tmp_path: Path
) -> None:
    rows = [image("routine", name), image("routine", name.lower()), image("urgent", "NV", "2")]
    path = written(tmp_path, *rows)
    assert counts(path) == {MISSED: 1}
    assert counts(path, "--target", "nv") == {"urgent": 1}


def test_classes_that_differ_in_case_alone_are_told_apart(tmp_path: Path) -> None:
    names = {"1": "mel", "2": "MEL", "3": "Mel", "4": "NV"}
    rows = [image("routine", name, lesion) for lesion, name in names.items()]
    path = written(tmp_path, *(row | {"p_mel": "", "p_MEL": "", "p_nv": ""} for row in rows))
    assert counts(path) == {MISSED: 1}
    assert counts(path, "--target", "nv") == {MISSED: 1}
    path = written(tmp_path, *rows)
    assert counts(path, "--target", "mel", "--target", "MEL") == {MISSED: 2}


@pytest.mark.parametrize(
    ("separator", "encoding"),
    [(";", "utf-8-sig"), (";", "utf-16"), ("\t", "utf-16"), (",", "utf-8")],
)
def test_a_table_is_read_as_spreadsheets_write_it(
    separator: str, encoding: str, tmp_path: Path
) -> None:
    path = written(tmp_path, *lesions("routine", "urgent"))
    path.write_text(path.read_text().replace(",", separator), encoding=encoding)
    assert counts(path) == {MISSED: 1, "urgent": 1}


def test_without_a_lesion_to_test_the_work_is_done(tmp_path: Path) -> None:
    rows = image("urgent", "nv", "1"), image("urgent", "akiec", "2"), image("urgent", "", "3")
    for path in (written(tmp_path, *rows), written(tmp_path, image("retake"))):
        done = succeed("monitor", path)
        assert "verdict: no alarm: there is nothing to test yet" in done.out
        assert "\nmiss rate: unknown, at least 0.0000 and at most 1.0000, each" in done.out


@pytest.mark.parametrize("names_classes", [True, False])
def test_diagnoses_that_do_not_count_are_counted_by_name(
    tmp_path: Path, names_classes: bool
) -> None:
    """Those that are no classes of the model are told apart if the file has their columns."""
    probabilities = {"p_mel": "0.1", "p_nv": "0.9"} if names_classes else {}
    found = {"1": ("mel", "mel"), "2": ("nv", "nv"), "3": ("Melanom", ""), "4": ("a\n", "")}
    rows = [
        image("urgent", name, lesion) | probabilities
        for lesion, names in found.items()
        for name in names
    ]
    lines = succeed("monitor", written(tmp_path, *rows)).out.splitlines()
    expected = ["1 (nv 1)", "2 (Melanom 1, a 1)"] if names_classes else ["3 (nv 1, Melanom 1, a 1)"]
    assert [line.rpartition(": ")[2] for line in lines if "do not count" in line] == expected


def test_a_file_has_the_columns_of_the_export(tmp_path: Path) -> None:
    reasons = (Reason.TARGET_POSSIBLE, Reason.HIGH_ENTROPY)
    exported = tmp_path / "rows.csv"
    Outputs(exported, None, None).write(
        [decided("a.png", Disposition.REFER, 0.2, *reasons)], mel_policy()
    )
    (row,) = csv.DictReader(exported.read_text("utf-8-sig").splitlines())
    row |= {"dx": " mel "}
    line = refusal("monitor", written(tmp_path, row), "--confirmed", "dx")
    assert "o.csv: expected decisions of the policy " in line and "got sha256:1" in line
    ours = row | {"policy_hash": ""}
    path = written(tmp_path, ours, ours | {"disposition": "", "reasons": ""}, ours | {"dx": ""})
    assert counts(path, "--confirmed", "dx") == {REFERRED: 1, NOT_ASSESSED: 1}


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
    assert named in refusal("monitor", path).partition("o.csv")[2]


def test_the_sample_rows_of_the_documentation_are_read(tmp_path: Path) -> None:
    _, header, rest = SITE.read_text(encoding="utf-8").partition("lesion,disposition,")
    rows = header + rest.partition("```")[0]
    (tmp_path / "rows.csv").write_text("\n".join(line.strip() for line in rows.splitlines()))
    assert sum(counts(tmp_path / "rows.csv").values()) == 1

"""service.client.table: what a person reads in the terminal."""

import os
from io import StringIO

import pytest

from service.client.policy import Disposition, Reason
from service.client.table import by_urgency, counts, printable, show
from service.client.triage import TriageRow
from service.client.wording import NOT_FITTED, TITLES, WARNING
from tests.service.client.runs import gap, mel_policy, row

ROWS = [
    row("routine.png", Disposition.ROUTINE, 0.05),
    gap("broken.png"),
    row("retake.png", Disposition.RETAKE, 0.05, Reason.TOO_DARK),
    row("urgent.png", Disposition.URGENT, 0.3, Reason.MALIGNANT_GROUP),
    row("refer.png", Disposition.REFER, 0.05, Reason.HIGH_ENTROPY, Reason.OUT_OF_DISTRIBUTION),
    row("more urgent.png", Disposition.URGENT, 0.6, Reason.MALIGNANT_GROUP),
]
ORDER = ["more urgent", "urgent", "refer", "retake", "routine", "broken"]


def shown(rows: list[TriageRow]) -> str:
    file = StringIO()
    show(rows, mel_policy(), file)
    return file.getvalue()


def test_the_most_urgent_come_first_and_those_without_a_decision_last() -> None:
    assert [each.path.stem for each in by_urgency(ROWS, mel_policy())] == ORDER
    lines = [line for line in shown(ROWS).splitlines() if ".png" in line]
    assert [line.rstrip().split("  ")[-1].strip().removesuffix(".png") for line in lines] == ORDER


def test_each_line_has_the_pathway_what_it_resembles_and_the_reasons() -> None:
    (refer,) = [line for line in shown(ROWS).splitlines() if "refer.png" in line]
    for words in (TITLES[Disposition.REFER], "nv 0.800", "0.50", "high entropy, out of distrib"):
        assert words in refer
    (broken,) = [line for line in shown(ROWS).splitlines() if "broken.png" in line]
    assert "no decision" in broken
    assert "it is broken" in broken


def test_under_the_table_stand_the_counts_and_the_warning() -> None:
    assert counts(ROWS) == "6 files: 2 urgent, 1 refer, 1 retake, 1 routine, 1 no decision"
    words = " ".join(shown(ROWS).split())
    assert words.index(counts(ROWS)) < words.index(NOT_FITTED) < words.index(WARNING)


def test_without_predictions_nothing_is_said_of_a_threshold() -> None:
    assert " ".join(NOT_FITTED.split()) not in " ".join(shown([gap("broken.png")]).split())


def test_long_names_are_folded_not_cut() -> None:
    name = "/".join(f"folder{number}" for number in range(40)) + ".png"
    text = shown([row(name, Disposition.ROUTINE)])
    assert name in "".join("".join(text.split()).split("nv0.8000.50"))


@pytest.mark.parametrize(
    ("name", "encoding", "seen"),
    [
        ("ü.png", "utf-8", "ü.png"),
        ("ü.png", "ascii", "\\xfc.png"),
        ("[red]a[/red] :smile:.png", "utf-8", "[red]a[/red] :smile:.png"),
        ("\x1b[2J\n.png", "utf-8", "\\x1b[2J\\n.png"),
        ("gpj.\u202egnp", "utf-8", "gpj.\\u202egnp"),
        (os.fsdecode(b"caf\xe9.png"), "utf-8", "caf\\udce9.png"),
    ],
)
def test_no_name_steers_the_terminal_or_fails(name: str, encoding: str, seen: str) -> None:
    assert printable(name, encoding) == seen
    if encoding == "utf-8":
        assert seen in shown([row(name, Disposition.ROUTINE)])

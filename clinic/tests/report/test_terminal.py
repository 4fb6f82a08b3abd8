"""The table of a run: its order, its cells, its width and its colours."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from clinic.tests.runs import decided, mel_policy, result_of
from clinic.tests.triage_rows import failed
from eulerlora_clinic.policy.results import NOT_ASSESSED, TITLES, WARNING
from eulerlora_clinic.report.ranking import TriageRow
from eulerlora_clinic.report.terminal import print_table
from eulerlora_contract.answers import Disposition, Reason

ROWS = [
    decided("routine.png", Disposition.ROUTINE, 0.01),
    failed(Path("broken.png")),
    decided("retake.png", Disposition.RETAKE, 0.01, Reason.TOO_DARK),
    decided("urgent.png", Disposition.URGENT, 0.3, Reason.TARGET_CLASSES),
    decided("refer.png", Disposition.REFER, 0.01, Reason.HIGH_ENTROPY, Reason.OUT_OF_DISTRIBUTION),
    decided("more urgent.png", Disposition.URGENT, 0.6, Reason.TARGET_CLASSES),
]
ORDER = ["more urgent", "urgent", "refer", "retake", "broken", "routine"]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def printed(rows: list[TriageRow]) -> str:
    file = StringIO()
    print_table(rows, mel_policy(), file)
    return file.getvalue()


def printed_on_terminal(
    rows: list[TriageRow], monkeypatch: pytest.MonkeyPatch, columns: int = 160
) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal()
    print_table(rows, mel_policy(), terminal)
    return terminal.getvalue()


def test_the_lines_are_ranked() -> None:
    lines = [line for line in printed(ROWS).splitlines() if ".png" in line]
    assert [line.rstrip().split("  ")[-1].strip().removesuffix(".png") for line in lines] == ORDER


def test_a_line_has_the_pathway_the_label_and_the_reasons() -> None:
    (refer,) = [line for line in printed(ROWS).splitlines() if "refer.png" in line]
    name = "melanocytic nevus 0.800"
    for text in (TITLES[Disposition.REFER], "0.010", name, "0.50", "high entropy, out of distrib"):
        assert text in refer
    (broken,) = [line for line in printed(ROWS).splitlines() if "broken.png" in line]
    assert NOT_ASSESSED in broken
    assert "it is broken" in broken


def test_the_line_of_an_unfamiliar_image_has_no_figure_and_no_class() -> None:
    row = decided("house.png", Disposition.UNFAMILIAR, 0.9, Reason.UNFAMILIAR, Reason.HIGH_ENTROPY)
    assert row.result is not None
    prediction = row.result.prediction.model_copy(update={"unfamiliar": True})
    result = row.result.model_copy(update={"prediction": prediction})
    text = printed([TriageRow(row.path, result)])
    (line,) = [line for line in text.splitlines() if "house.png" in line]
    assert line.split() == ["Unfamiliar", "unfamiliar", "house.png"]


def test_an_image_far_from_all_that_the_model_knows_is_the_last_of_the_unfamiliar_ones() -> None:
    known, far = (Reason.UNFAMILIAR,), (Reason.UNFAMILIAR, Reason.FAR)
    rows = []
    for name, reasons in (("a house.png", far), ("a lesion.png", known)):
        row = decided(name, Disposition.UNFAMILIAR, 0.2, *reasons)
        assert row.result is not None
        prediction = row.result.prediction.model_copy(update={"unfamiliar": True})
        result = row.result.model_copy(update={"prediction": prediction})
        rows.append(TriageRow(row.path, result))
    text = printed(rows)
    assert text.index("a lesion.png") < text.index("a house.png")


def test_a_lesion_has_the_line_of_its_most_urgent_image() -> None:
    rows = [replace(row, lesion=str(number % 2)) for number, row in enumerate(ROWS)]
    lines = [line for line in printed([*rows, ROWS[0]]).splitlines() if ".png" in line]
    names = ["more urgent.png (lesion 1, 1 of 3)", "refer.png (lesion 0, 1 of 3)"]
    assert [line.split("  ")[-1].strip() for line in lines] == [*names, "routine.png"]


def test_the_counts_and_the_warning_follow_the_table() -> None:
    counts = "6 files: 2 urgent, 0 unfamiliar, 1 refer, 1 retake, 1 routine, 1 not assessed"
    text = " ".join(printed(ROWS).split())
    assert text.index(counts) < text.index("were not set for this model") < text.index(WARNING)


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_the_table_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [*ROWS, decided("long " * 20 + ".png", Disposition.ROUTINE)]
    lines = printed_on_terminal(rows, monkeypatch, columns).splitlines()
    assert max(map(len, lines)) <= columns
    words = " ".join(lines).split()
    assert words.count("long") == 20


def test_names_of_a_service_send_nothing_to_the_terminal() -> None:
    result = result_of(Disposition.ROUTINE).model_copy(
        update={"class_names": {"mel": "mela\x1b]0;title\x07noma"}}
    )
    text = printed([TriageRow(Path("a.png"), result)])
    assert "\\x1b]0;title\\x07" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" in printed_on_terminal(ROWS, monkeypatch)
    monkeypatch.setenv(name, value)
    assert "\x1b" not in printed_on_terminal(ROWS, monkeypatch)

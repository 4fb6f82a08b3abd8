"""The table on the terminal."""

import re
from io import StringIO

import click
import pytest

from eulerlora_client.commands.session import HEADER, column_widths, print_table, summary
from eulerlora_client.contract.answers import Disposition, Reason
from eulerlora_client.policy.results import NOT_ASSESSED, NOT_FITTED, TITLES, WARNING
from eulerlora_client.report.ranking import TriageRow, ranked
from tests.eulerlora_client.runs import decided, mel_policy, undecided

ROWS = [
    decided("routine.png", Disposition.ROUTINE, 0.01),
    undecided("broken.png"),
    decided("retake.png", Disposition.RETAKE, 0.01, Reason.TOO_DARK),
    decided("urgent.png", Disposition.URGENT, 0.3, Reason.MALIGNANT_GROUP),
    decided("refer.png", Disposition.REFER, 0.01, Reason.HIGH_ENTROPY, Reason.OUT_OF_DISTRIBUTION),
    decided("more urgent.png", Disposition.URGENT, 0.6, Reason.MALIGNANT_GROUP),
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
    rows: list[TriageRow], monkeypatch: pytest.MonkeyPatch, columns: int
) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
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


def test_the_counts_and_the_warning_follow_the_table() -> None:
    counts = summary(ranked(ROWS))
    assert counts == (
        "6 files: 2 urgent, 0 unfamiliar, 1 refer, 1 retake, 1 routine, 1 not assessed"
    )
    text = " ".join(printed(ROWS).split())
    assert text.index(counts) < text.index(NOT_FITTED) < text.index(WARNING)


def test_without_predictions_there_is_no_note_on_the_threshold() -> None:
    assert NOT_FITTED not in " ".join(printed([undecided("broken.png")]).split())


def test_names_start_below_the_common_folder() -> None:
    text = printed([decided(f"/data/wards/{name}/a.png", Disposition.ROUTINE) for name in "12"])
    assert "  1/a.png" in text
    assert "wards" not in text


def test_long_names_are_folded_and_not_cut() -> None:
    name = "".join(f"part{number}" for number in range(60)) + ".png"
    text = printed([decided(name, Disposition.ROUTINE)])
    assert name in "".join("".join(text.split()).split("0.200melanocyticnevus0.8000.50"))


def test_a_name_cannot_control_the_terminal() -> None:
    for name, expected in (("[b]:x:", "[b]:x:"), ("\x1b[2J", "\\x1b[2J")):
        assert expected in printed([decided(f"{name}.png", Disposition.ROUTINE)])


def test_names_that_look_like_other_types_are_text() -> None:
    for name in ("False", "1e3", " two  spaces", "\N{LATIN SMALL LETTER E WITH ACUTE}-"):
        assert f"  {name}\n" in printed([decided(name, Disposition.ROUTINE)])


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_the_table_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [*ROWS, decided("long " * 20 + ".png", Disposition.ROUTINE)]
    lines = printed_on_terminal(rows, monkeypatch, columns).splitlines()
    assert max(map(len, lines)) <= columns
    words = " ".join(lines).split()
    assert words.count("long") == 20


def test_only_the_widest_columns_shrink() -> None:
    lines = [["a" * 10, "b" * 30, "c" * 50], ["a", "b", "c"]]
    assert column_widths(lines, 94) == [10, 30, 50]
    assert column_widths(lines, 84) == [10, 30, 40]
    assert column_widths(lines, 54) == [10, 20, 20]
    assert column_widths(lines, 1) == [4, 4, 4]


def test_a_terminal_shows_each_status_in_its_style(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = printed_on_terminal(ROWS, monkeypatch, 160)
    assert click.style("urgent.png", fg="red", bold=True) in text
    assert click.style("retake.png", fg="cyan") in text
    assert "  routine.png" in text
    assert click.unstyle(text) == printed(ROWS)


def test_every_line_of_a_folded_cell_has_the_style(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    rows = [decided("long-" * 40, Disposition.REFER, 0.01, Reason.HIGH_ENTROPY)]
    coloured = printed_on_terminal(rows, monkeypatch, 80)
    parts = re.findall(r"\x1b\[33m([^\x1b]*)\x1b\[0m", coloured)
    assert "long-" * 40 in "".join(part for part in parts if part.startswith("long-"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert click.unstyle(coloured) == printed_on_terminal(rows, monkeypatch, 80)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv(name, value)
    terminal = Terminal()
    print_table(ROWS, mel_policy(), terminal)
    assert "\x1b" not in terminal.getvalue()


def test_the_columns_are_separated_and_the_entropy_is_aligned_right() -> None:
    _, header, dashes, first, *_ = printed(ROWS).splitlines()
    assert re.split(" {2,}", header.strip()) == list(HEADER)
    assert re.fullmatch("-+(  -+){5}", dashes)
    assert first[: [match.end() for match in re.finditer("-+", dashes)][3]].endswith(" 0.50")

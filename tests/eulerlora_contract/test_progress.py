"""Progress of long work: a bar on a terminal, lines elsewhere."""

import io
import sys
from contextlib import closing

import pytest

from eulerlora_contract.progress import ProgressBar, format_duration, track


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replaces stderr by a terminal, on which a bar is redrawn at every step."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("eulerlora_contract.progress._REDRAW_INTERVAL_S", 0.0)
    return terminal


def displayed(terminal: Terminal) -> list[str]:
    """Text after a carriage return replaces the line's start."""
    lines = []
    for line in terminal.getvalue().split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.4, "59 s"), (59.8, "1 min"), (3_599, "1 h 00 min"), (7_500, "2 h 05 min")],
)
def test_durations_are_rounded_to_seconds_or_minutes(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_without_a_terminal_lines_appear_on_stderr_at_intervals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eulerlora_contract.progress._LINE_INTERVAL_S", 1e-9)
    assert list(track("abc", "test", "batches", 3)) == ["a", "b", "c"]
    output = capsys.readouterr()
    assert output.out == ""
    assert [line.split(",")[0] for line in output.err.splitlines()] == [
        f"test: {done}/3 batches" for done in (1, 2, 3)
    ]
    list(track("ab", "test", "images"))
    assert capsys.readouterr().err.splitlines() == ["test: 1 images", "test: 2 images"]


def test_without_a_terminal_short_work_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("test", "batches", 3) as progress:
        progress.advance()
        progress.print("a line")
    assert capsys.readouterr() == ("a line\n", "")


def test_on_a_terminal_a_bar_counts_the_items_and_disappears(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = on_terminal(monkeypatch)
    assert list(track("abc", "test", "batches", 3)) == ["a", "b", "c"]
    assert "3/3 batches" in terminal.getvalue()
    assert displayed(terminal) == [""]
    assert capsys.readouterr().out == ""
    list(track("ab", "test", "images"))
    assert "test 2 images" in terminal.getvalue()


def test_lines_appear_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    monkeypatch.setattr(sys, "stdout", terminal)
    with closing(ProgressBar("test", "batches", 3)) as bar:
        bar.advance()
        bar.print("a line")
        line, last = displayed(terminal)
        assert line == "a line"
        assert "1/3 batches" in last
    assert displayed(terminal) == ["a line", ""]

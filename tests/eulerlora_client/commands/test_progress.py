"""A bar on a terminal and plain lines elsewhere, both on stderr."""

import sys
import threading
from io import StringIO

import pytest

from eulerlora_client.commands import progress as display
from eulerlora_client.commands.progress import TriageProgress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_lines_show_the_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(display, "PLAIN_INTERVAL_S", 0.0)
    with TriageProgress(3) as shown:
        for _ in range(3):
            shown.advance()
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(",")[0] for line in err.splitlines()] == [
        "triage: 1/3 files",
        "triage: 2/3 files",
    ]


def test_a_short_run_without_a_terminal_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with TriageProgress(2) as shown:
        shown.advance()
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_a_bar_counts_the_files_and_disappears(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(display, "REDRAW_INTERVAL_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    threads = threading.enumerate()
    with TriageProgress(3) as shown:
        shown.advance()
        assert "1/3 files" in terminal.getvalue().split("\r")[-1]
        assert threading.enumerate() == threads
    blank, end = terminal.getvalue().split("\r")[-2:]
    assert (blank.strip(), end) == ("", "")
    assert "\n" not in terminal.getvalue()
    assert capsys.readouterr().out == ""

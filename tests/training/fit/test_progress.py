"""How far long work is, and how long it will take."""

import io
import sys
import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from training.fit.batches import RunLength
from training.fit.progress import RunDisplay, duration, progress, run_line
from training.fit.run_state import Progress

LENGTH = RunLength(images=100, batch_size=8, epochs=4)
NOTHING = Progress()


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain line is due at every step."""
    monkeypatch.setattr("training.fit.progress.PLAIN_EVERY_S", 0.0)


def test_a_line_tells_of_rate_waiting_and_time_left() -> None:
    tally = Progress(step=26, seconds=200, waited_s=6, epoch_loss=26.0, epoch_steps=13)
    assert run_line(tally, NOTHING, LENGTH) == (
        "step 26/52, epoch 2/4, loss 2.000, 1 images/s, 3% waiting, 3 min left"
    )


def test_a_resumed_run_s_rates_and_time_left_are_of_its_own_steps() -> None:
    begun = Progress(step=26, seconds=5_000, waited_s=4_000, epoch_loss=9.0, epoch_steps=13)
    tally = Progress(step=39, seconds=5_010, waited_s=4_001, epoch_loss=13.0, epoch_steps=13)
    assert run_line(tally, begun, LENGTH) == (
        "step 39/52, epoch 3/4, loss 1.000, 10 images/s, 10% waiting, 10 s left"
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (59.4, "59 s"), (59.8, "1 min"), (3_599, "1 h 00 min"), (7_500, "2 h 05 min")],
)
def test_durations_are_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_elsewhere_lines_come_on_stdout_when_they_are_due(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    display = RunDisplay(LENGTH, NOTHING, "stage 1/2", shown=True)
    tally = NOTHING
    for _ in range(52):
        now += 4
        tally = tally.after(1.0, seconds=4, waited_s=0)
        display.show(tally)
    display.say("epoch 4/4: 1.0000")
    display.close()
    shown = capsys.readouterr()
    *lines, last = shown.out.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        f"stage 1/2: step {step}/52" for step in (8, 16, 24, 32, 40, 48)
    ]
    assert last == "stage 1/2: epoch 4/4: 1.0000"
    assert shown.err == ""


def test_a_process_that_is_not_the_main_one_shows_nothing(
    capsys: pytest.CaptureFixture[str], every_line: None
) -> None:
    display = RunDisplay(LENGTH, NOTHING, "", shown=False)
    display.show(NOTHING.after(1.0, 1.0, 0.0))
    display.say("epoch 1/4: 1.0000")
    display.close()
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_one_bar_spans_all_steps_of_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], every_line: None
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    begun = Progress(step=26, seconds=1_000, epoch_loss=1.0, epoch_steps=1)
    display = RunDisplay(LENGTH, begun, "", shown=True)
    assert display.bar is not None
    assert (display.bar.initial, display.bar.total) == (26, 52)
    display.show(begun.after(3.0, 1.0, 0.0))
    display.bar.refresh()
    assert "27/52" in terminal.getvalue()
    assert "epoch 3/4" in terminal.getvalue()
    assert "loss 2.000" in terminal.getvalue()
    display.close()
    assert capsys.readouterr().out == ""


def batches() -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.zeros(5, 2), torch.arange(5)), batch_size=2)


def test_other_work_tells_of_its_batches_on_stderr(
    capsys: pytest.CaptureFixture[str], every_line: None
) -> None:
    assert len(list(progress(batches(), "test"))) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert [line.split(",")[0] for line in shown.err.splitlines()] == [
        f"test: batch {done}/3" for done in (1, 2, 3)
    ]


def test_short_work_elsewhere_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    list(progress(batches(), "test"))
    assert capsys.readouterr() == ("", "")

"""Progress of a run as lines and as a bar."""

import time

import pytest

from tests.eulerlora_client.test_progress import Terminal, on_terminal
from training.fit.batches import RunLength
from training.fit.progress import ProgressDisplay, estimate_line, run_line
from training.fit.run import Progress

LENGTH = RunLength(images=100, batch_size=8, epochs=4)
START = Progress()


def test_a_line_contains_rate_waiting_time_and_time_left() -> None:
    progress = Progress(step=26, seconds=200, waited_s=6, epoch_loss=26.0, epoch_steps=13)
    assert run_line(progress, START, LENGTH) == (
        "step 26/52, epoch 2/4, loss 2.000, 1 images/s, 3% waiting, 3 min left"
    )


def test_rates_and_time_left_of_a_resumed_run_cover_the_present_session() -> None:
    start = Progress(step=26, seconds=5_000, waited_s=4_000, epoch_loss=9.0, epoch_steps=13)
    progress = Progress(step=39, seconds=5_010, waited_s=4_001, epoch_loss=13.0, epoch_steps=13)
    assert run_line(progress, start, LENGTH) == (
        "step 39/52, epoch 3/4, loss 1.000, 10 images/s, 10% waiting, 10 s left"
    )


def test_without_a_terminal_lines_appear_on_stdout_at_intervals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    display = ProgressDisplay(LENGTH, START, "stage 1/2", enabled=True)
    progress = START
    for _ in range(52):
        now += 4
        progress = progress.after(1.0, seconds=4, waited_s=0)
        display.show(progress)
    display.print("epoch 4/4: 1.0000")
    display.close()
    output = capsys.readouterr()
    estimate, *lines, last = output.out.splitlines()
    assert estimate.startswith("stage 1/2: 4.00 s per step: about 3 min for 46 more steps; ")
    assert [line.split(",")[0] for line in lines] == [
        f"stage 1/2: step {step}/52" for step in (8, 16, 24, 32, 40, 48)
    ]
    assert last == "stage 1/2: epoch 4/4: 1.0000"
    assert output.err == ""


def test_a_process_other_than_the_main_one_shows_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.fit.progress.LINE_INTERVAL_S", 0.0)
    display = ProgressDisplay(LENGTH, START, "", enabled=False)
    display.show(START.after(1.0, 1.0, 0.0))
    display.print("epoch 1/4: 1.0000")
    display.close()
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_one_bar_covers_all_steps_of_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal: Terminal = on_terminal(monkeypatch)
    start = Progress(step=26, seconds=1_000, epoch_loss=1.0, epoch_steps=1)
    display = ProgressDisplay(LENGTH, start, "", enabled=True)
    display.show(start.after(3.0, 1.0, 0.0))
    assert "27/52 steps, loss 2.000" in terminal.getvalue()
    assert "epoch 3/4" in terminal.getvalue()
    display.close()
    assert capsys.readouterr().out == ""


def test_the_estimate_leaves_out_the_first_step_and_states_the_memory() -> None:
    first = Progress(step=1, seconds=100.0, epoch_loss=1.0, epoch_steps=1)
    progress = Progress(step=6, seconds=110.0, epoch_loss=6.0, epoch_steps=6)
    line = estimate_line(first, progress, LENGTH)
    assert line.startswith("2.00 s per step: about 2 min for 46 more steps; ")
    assert float(line.rpartition("; ")[2].split()[0]) > 0

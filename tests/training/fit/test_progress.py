"""Progress of a run as lines, as a bar, and as curves of a tracker."""

import importlib.util
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import accelerate.tracking
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eulerlora_client.errors import SettingsError
from tests.eulerlora_client.test_progress import Terminal, on_terminal
from training.fit.batches import RunLength
from training.fit.optimisation import Step
from training.fit.progress import Curves, ProgressDisplay, run_line
from training.fit.run import Progress, Tracker, Tracking

LENGTH = RunLength(images=100, batch_size=8, epochs=4)
START = Progress()


RESUMED = Progress(step=26, seconds=5_000, waited_s=4_000, epoch_loss=9.0, epoch_steps=13)


@pytest.mark.parametrize(
    ("start", "progress", "line"),
    [
        (
            START,
            Progress(step=26, seconds=200, waited_s=6, epoch_loss=26.0, epoch_steps=13),
            "step 26/52, epoch 2/4, loss 2.000, 1 images/s, 3% waiting, 3 min left",
        ),
        (
            RESUMED,
            Progress(step=39, seconds=5_010, waited_s=4_001, epoch_loss=13.0, epoch_steps=13),
            "step 39/52, epoch 3/4, loss 1.000, 10 images/s, 10% waiting, 10 s left",
        ),
    ],
)
def test_a_line_has_rate_waiting_time_and_time_left_of_the_session(
    start: Progress, progress: Progress, line: str
) -> None:
    assert run_line(progress, start, LENGTH) == line


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


SHORT = RunLength(images=20, batch_size=8, epochs=2)
STEP = Step(loss=2.0, learning_rate=0.5, gradient_norm=3.0)


def read_curves(folder: Path) -> dict[str, dict[int, float]]:
    """Returns the values by step of every curve in a folder; no step may appear twice."""
    events = EventAccumulator(str(folder / "run")).Reload()
    curves = {}
    for name in events.Tags()["scalars"]:
        points = events.Scalars(name)
        curves[name] = {point.step: point.value for point in points}
        assert len(curves[name]) == len(points)
    return curves


def write_curves(folder: Path, progress: Progress, steps: int, loss: float) -> None:
    """Writes steps of 2 s, a quarter of it waiting, and the epochs that they end."""
    curves = Curves(Tracking(("tensorboard",), folder, "run"), progress.step)
    for _ in range(steps):
        before, progress = progress, progress.after(loss, seconds=2.0, waited_s=0.5)
        curves.add_step(replace(STEP, loss=loss), before, progress, SHORT)
        if progress.step % SHORT.steps_per_epoch == 0:
            curves.add_epoch(progress, {"validation_nll": 0.5})
    curves.close()


def test_curves_contain_every_step_and_epoch(tmp_path: Path) -> None:
    write_curves(tmp_path, START, steps=6, loss=2.0)
    curves = read_curves(tmp_path)
    assert curves["step/loss"] == dict.fromkeys(range(6), 2.0)
    assert curves["step/learning_rate"] == dict.fromkeys(range(6), 0.5)
    assert curves["step/gradient_norm"] == dict.fromkeys(range(6), 3.0)
    assert curves["step/images_per_second"] == {0: 4, 1: 4, 2: 2, 3: 4, 4: 4, 5: 2}
    assert curves["step/waiting_share"] == dict.fromkeys(range(6), 0.25)
    assert curves["epoch/mean_loss"] == {2: 2.0, 5: 2.0}
    assert curves["epoch/validation_nll"] == {2: 0.5, 5: 0.5}


def test_a_resumed_run_replaces_the_curves_of_repeated_steps(tmp_path: Path) -> None:
    write_curves(tmp_path, START, steps=5, loss=1.0)
    resumed = Progress(step=2, seconds=4.0, epoch_loss=2.0, epoch_steps=2)
    write_curves(tmp_path, resumed, steps=4, loss=2.0)
    assert read_curves(tmp_path)["step/loss"] == {0: 1, 1: 1, 2: 2, 3: 2, 4: 2, 5: 2}
    assert set(read_curves(tmp_path)["epoch/mean_loss"]) == {2, 5}


class FakeTracker:
    """Records its calls as the trackers of Accelerate are called."""

    calls: ClassVar[list[tuple[object, ...]]] = []

    def __init__(self, project: str, **options: str) -> None:
        self.calls.append((project, options))

    def start(self) -> None:
        self.calls.append(("start",))

    def store_init_configuration(self, values: dict[str, str]) -> None:
        self.calls.append(("settings", values))

    def log(self, values: dict[str, float], step: int) -> None:
        self.calls.append((step, sorted(values)))

    def finish(self) -> None:
        self.calls.append(("finish",))


@pytest.mark.parametrize(
    ("name", "option"), [("mlflow", "run_name"), ("wandb", "name"), ("trackio", "name")]
)
def test_other_trackers_get_the_run_its_settings_and_its_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Tracker, option: str
) -> None:
    monkeypatch.setitem(accelerate.tracking.LOGGER_TYPE_TO_CLASS, name, FakeTracker)
    FakeTracker.calls.clear()
    curves = Curves(Tracking((name,), tmp_path / "curves", "r", {"seed": "1"}), first_step=0)
    curves.add_epoch(START.after(1.0, 1.0, 0.0), {})
    curves.close()
    (project, options), *calls = FakeTracker.calls
    assert project == "eulerlora"
    assert options[option] == "r"
    assert calls == [
        ("start",), ("settings", {"seed": "1"}), (0, ["epoch/mean_loss"]), ("finish",)
    ]  # fmt: skip


def test_a_tracker_that_is_not_installed_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(SettingsError, match="run: pip install trackio"):
        Tracking(("trackio",), tmp_path, "run").check()


def test_a_process_other_than_the_main_one_shows_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.fit.progress.LINE_INTERVAL_S", 0.0)
    display = ProgressDisplay(LENGTH, START, "", enabled=False)
    display.show(START.after(1.0, 1.0, 0.0))
    display.print("epoch 1/4: 1.0000")
    display.close()
    assert capsys.readouterr() == ("", "")

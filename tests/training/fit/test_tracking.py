"""Training curves in TensorBoard and in other trackers."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import accelerate.tracking
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eulerlora.errors import SettingsError
from training.fit.batches import RunLength
from training.fit.optimisation import Step
from training.fit.progress import Curves
from training.fit.run import Progress, Tracker, Tracking

START = Progress()
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


def test_a_new_run_replaces_the_curves_of_an_older_one(tmp_path: Path) -> None:
    write_curves(tmp_path, START, steps=5, loss=1.0)
    write_curves(tmp_path, START, steps=2, loss=2.0)
    assert read_curves(tmp_path)["step/loss"] == {0: 2, 1: 2}


def test_without_a_tracker_no_curves_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    curves = Curves(None, 0)
    curves.add_step(STEP, START, START.after(1.0, 1.0, 0.0), SHORT)
    curves.close()
    assert list(tmp_path.iterdir()) == []


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

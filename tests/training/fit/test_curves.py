"""What TensorBoard reads back."""

from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from training.fit.batches import RunLength
from training.fit.optimisation import Step
from training.fit.progress import Curves
from training.fit.run_state import Progress

LENGTH = RunLength(images=20, batch_size=8, epochs=2)
STEP = Step(loss=2.0, learning_rate=0.5, gradient_norm=3.0)


def read(folder: Path) -> dict[str, dict[int, float]]:
    """Values by step of every curve in a folder; no step may appear twice."""
    events = EventAccumulator(str(folder)).Reload()
    found = {}
    for name in events.Tags()["scalars"]:
        points = events.Scalars(name)
        found[name] = {point.step: point.value for point in points}
        assert len(found[name]) == len(points)
    return found


def write(folder: Path, tally: Progress, steps: int, loss: float) -> None:
    """Steps of 2 s each, a quarter of it waiting, the epoch means among them."""
    curves = Curves(folder, tally.step)
    for _ in range(steps):
        before, tally = tally, tally.after(loss, seconds=2.0, waited_s=0.5)
        curves.step(replace(STEP, loss=loss), before, tally, LENGTH)
        if tally.step % LENGTH.per_epoch == 0:
            curves.epoch(tally)
    curves.flush()
    curves.close()


def test_every_step_and_epoch_is_there(tmp_path: Path) -> None:
    write(tmp_path, Progress(), steps=6, loss=2.0)
    found = read(tmp_path)
    assert found["step/loss"] == dict.fromkeys(range(6), 2.0)
    assert found["step/learning_rate"] == dict.fromkeys(range(6), 0.5)
    assert found["step/gradient_norm"] == dict.fromkeys(range(6), 3.0)
    assert found["step/images_per_second"] == {0: 4, 1: 4, 2: 2, 3: 4, 4: 4, 5: 2}
    assert found["step/waiting_share"] == dict.fromkeys(range(6), 0.25)
    assert found["epoch/mean_loss"] == {2: 2.0, 5: 2.0}


def test_a_resumed_run_replaces_the_steps_that_it_takes_again(tmp_path: Path) -> None:
    write(tmp_path, Progress(), steps=5, loss=1.0)
    write(tmp_path, Progress(step=2, seconds=4.0, epoch_loss=2.0, epoch_steps=2), steps=4, loss=2.0)
    assert read(tmp_path)["step/loss"] == {0: 1, 1: 1, 2: 2, 3: 2, 4: 2, 5: 2}
    assert set(read(tmp_path)["epoch/mean_loss"]) == {2, 5}


def test_a_run_that_starts_anew_replaces_the_older_one_s_curves(tmp_path: Path) -> None:
    write(tmp_path, Progress(), steps=5, loss=1.0)
    write(tmp_path, Progress(), steps=2, loss=2.0)
    assert read(tmp_path)["step/loss"] == {0: 2, 1: 2}


def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    curves = Curves(None, 0)
    curves.step(STEP, Progress(), Progress().after(1.0, 1.0, 0.0), LENGTH)
    curves.flush()
    curves.close()
    assert list(tmp_path.iterdir()) == []

"""The optimisation loop.

Progress of a run as lines, as a bar, and as curves of a tracker.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import accelerate.tracking
import numpy as np
import pytest
import torch
from accelerate import Accelerator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

from eulerlora_contract.errors import CheckpointError, DataError, NonFiniteError, SettingsError
from tests.eulerlora_contract.test_progress import Terminal, on_terminal
from tests.training.conftest import plain_view
from training.data.dataset import DataSettings
from training.data.datasets import read_dataset
from training.optimisation.batches import LoadedBatches
from training.optimisation.loop import optimise
from training.optimisation.run import Run, Tracking
from training.optimisation.step import Objective, Optimisation
from training.recipe.schema import AdapterTraining

SETTINGS = AdapterTraining(
    epochs=2, batch_size=8, learning_rate=0.1, warmup_steps=1, weight_decay=0.0, workers=0
)


class ColourObjective(Objective[int]):
    """A linear classifier of an image's mean colour; `disturb` changes the loss of a step.

    `weights` has the classifier's weight before each call.
    """

    def __init__(self, disturb: Callable[[Tensor, int], Tensor] = lambda loss, _: loss) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(3, 3), rows_per_image=4)
        self.disturb = disturb
        self.weights: list[Tensor] = []

    def draw(self, seed: int, step: int, process: int) -> int:
        return step

    def loss(
        self, network: Callable[..., Tensor], images: Tensor, labels: Tensor, draw: int
    ) -> Tensor:
        self.weights.append(self.network.weight.detach().clone())
        logits = network(images.mean(dim=(2, 3)))
        return self.disturb(nn.functional.cross_entropy(logits, labels, reduction="sum"), draw)

    def weight(self, labels: Tensor) -> Tensor:
        return torch.tensor(float(len(labels)))


@pytest.fixture
def batches(image_folder: Path) -> LoadedBatches:
    data = read_dataset(DataSettings(kind="imagefolder", path="train"), image_folder)
    return LoadedBatches(data.parts["train"], lambda _: plain_view(8), SETTINGS, seed=5)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(Accelerator(cpu=True), seed=5, recipe=SETTINGS, state=tmp_path / "state.safetensors")


@pytest.mark.parametrize("micro_batch_rows", [None, 12])
def test_a_run_equals_a_plain_loop_with_adamw(
    batches: LoadedBatches, run: Run, micro_batch_rows: int | None
) -> None:
    changes = {"clip_norm": 0.01, "weight_decay": 0.1, "micro_batch_rows": micro_batch_rows}
    settings = SETTINGS.model_copy(update=changes)
    ours, plain = ColourObjective(), ColourObjective()
    optimise(ours, replace(batches, settings=settings), run)
    if micro_batch_rows is not None:
        assert len(ours.weights) > 2 * -(-batches.length.images // 8)
    optimiser = torch.optim.AdamW(plain.network.parameters(), lr=0.0, weight_decay=0.1)
    last = 2 * -(-batches.length.images // 8) - 1
    step = 0
    for epoch in range(2):
        for pixels, labels in batches.epoch(epoch, 0):
            angle = torch.tensor(torch.pi * (step - 1) / last)
            optimiser.param_groups[0]["lr"] = 0.1 * float(step > 0) * float(1 + angle.cos()) / 2
            optimiser.zero_grad()
            (plain.loss(plain.network, pixels, labels, step) / len(labels)).backward()
            nn.utils.clip_grad_norm_(plain.network.parameters(), 0.01)
            optimiser.step()
            step += 1
    torch.testing.assert_close(
        ours.network.state_dict(), plain.network.state_dict(), atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_loss_stops_the_run_before_the_step(
    batches: LoadedBatches, run: Run, value: float
) -> None:
    objective = ColourObjective(lambda loss, step: loss * (value if step == 2 else 1.0))
    with pytest.raises(NonFiniteError, match="loss at step 2"):
        optimise(objective, batches, run)
    assert all(parameter.isfinite().all() for parameter in objective.network.parameters())


def test_a_non_finite_gradient_stops_the_run(batches: LoadedBatches, run: Run) -> None:
    # The square root adds 0 to the loss, with an infinite slope.
    objective = ColourObjective(lambda loss, _: loss + torch.sqrt(loss - loss.detach()))
    with pytest.raises(NonFiniteError, match="gradient norm at step 0"):
        optimise(objective, batches, run)


class StoppedError(Exception):
    """Ends a run at a given step like a crash."""


@pytest.mark.parametrize("stop_at", [2, 5, 6, 9])
def test_a_resumed_run_ends_with_the_same_weights(
    batches: LoadedBatches, run: Run, stop_at: int
) -> None:
    def stop(loss: Tensor, step: int) -> Tensor:
        if step == stop_at:
            raise StoppedError
        return loss

    batches = replace(batches, settings=SETTINGS.model_copy(update={"state_every_s": 0.0}))
    whole = ColourObjective()
    fitted = optimise(whole, batches, run)
    run.state.unlink()
    with pytest.raises(StoppedError):
        optimise(ColourObjective(stop), batches, run)
    rest = ColourObjective()
    resumed = replace(run, resume=True)
    continued = optimise(rest, batches, resumed)
    assert len(rest.weights) < len(whole.weights)
    torch.testing.assert_close(
        rest.network.state_dict(), whole.network.state_dict(), atol=0, rtol=0
    )
    assert continued.loss_by_epoch == pytest.approx(fitted.loss_by_epoch)
    first, *_, last = fitted.loss_by_epoch
    assert first > last


def test_without_resume_an_older_state_is_ignored(batches: LoadedBatches, run: Run) -> None:
    optimise(ColourObjective(), batches, run)
    again = ColourObjective()
    optimise(again, batches, run)
    assert len(again.weights) == 2 * -(-batches.length.images // 8)


@pytest.mark.parametrize(
    ("changes", "cut", "error"),
    [
        ({"recipe": SETTINGS.model_copy(update={"epochs": 4})}, None, SettingsError),
        ({"data_digest": "other"}, None, DataError),
        ({}, -9, CheckpointError),
    ],
)
def test_a_state_of_other_settings_or_data_and_a_damaged_one_are_refused_and_remain(
    batches: LoadedBatches,
    run: Run,
    changes: dict[str, object],
    cut: int | None,
    error: type[Exception],
) -> None:
    few = replace(batches, labelled_images=batches.labelled_images[:8])
    optimise(ColourObjective(), few, run)
    content = run.state.read_bytes()[:cut]
    run.state.write_bytes(content)
    with pytest.raises(error, match=r"state\.safetensors"):
        optimise(ColourObjective(), few, replace(run, resume=True, **changes))
    assert run.state.read_bytes() == content


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The only item is the time that every reading of the clock takes, in seconds.

    The first step of an epoch has two readings and waits for one of them, another step has three.
    """
    each, now = [1.0], [0.0]

    def monotonic() -> float:
        now[0] += each[0]
        return now[0]

    monkeypatch.setattr("training.optimisation.loop.time", SimpleNamespace(monotonic=monotonic))
    return each


def constant(loss: Tensor, _: int) -> Tensor:
    """A loss of 1 for each image of a batch of 8, with the gradient of `loss`."""
    return loss - loss.detach() + 8


@pytest.fixture
def shown_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress as one line for every step."""
    monkeypatch.setattr("eulerlora_contract.progress._LINE_INTERVAL_S", 1e-9)


@pytest.fixture
def even(batches: LoadedBatches) -> LoadedBatches:
    """Two epochs of five batches of eight images."""
    return replace(batches, labelled_images=batches.labelled_images[:40])


@pytest.mark.usefixtures("clock", "shown_lines")
def test_without_a_terminal_lines_show_the_steps_of_all_epochs(
    even: LoadedBatches, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    optimise(ColourObjective(constant), even, replace(run, name="stage 1/2"))
    output = capsys.readouterr()
    first, estimate, last = output.out.splitlines()
    assert estimate.startswith("stage 1/2: 2.80 s per step: about 11 s for the 4 steps left; ")
    assert (first, last) == tuple(f"stage 1/2: epoch {n}/2: loss 1.0000" for n in (1, 2))
    seconds = np.cumsum([2, *[3] * 4] * 2)
    assert [line.rsplit(",", 1)[0] for line in output.err.splitlines()] == [
        f"stage 1/2: epoch {1 + (step - 1) // 5}/2: {step}/10 steps, loss 1.000, "
        f"{8 * step / total:.0f} images/s, {step / total:.0%} waiting"
        for step, total in enumerate(seconds.tolist(), start=1)
    ]


@pytest.fixture
def stopped(even: LoadedBatches, run: Run, clock: list[float]) -> tuple[LoadedBatches, Run]:
    """A run that stopped after seven steps of a thousandth of the speed, and was stored."""

    def stop(loss: Tensor, step: int) -> Tensor:
        if step == 7:
            raise StoppedError
        return constant(loss, step)

    stored = replace(even, settings=SETTINGS.model_copy(update={"state_every_s": 0.0}))
    clock[0] = 1000.0
    with pytest.raises(StoppedError):
        optimise(ColourObjective(stop), stored, run)
    clock[0] = 1.0
    return stored, replace(run, resume=True)


@pytest.mark.usefixtures("shown_lines")
def test_rate_and_waiting_time_are_those_of_the_session(
    stopped: tuple[LoadedBatches, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    optimise(ColourObjective(lambda loss, _: 3 * constant(loss, _)), *stopped)
    first = capsys.readouterr().err.splitlines()[0]  # the third step of an epoch, after two of 1
    assert first.startswith("epoch 2/2: 8/10 steps, loss 1.667, 4 images/s, 50% waiting,")


def test_on_a_terminal_one_bar_covers_all_steps_of_the_run(
    stopped: tuple[LoadedBatches, Run],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    terminal: Terminal = on_terminal(monkeypatch)
    optimise(ColourObjective(constant), *stopped)
    assert "epoch 2/2" in terminal.getvalue()
    assert "8/10 steps, loss 1.000" in terminal.getvalue()
    assert "6/10 steps" not in terminal.getvalue()
    assert "epoch 2/2: loss 1.0000" in capsys.readouterr().out


@pytest.mark.usefixtures("shown_lines")
def test_a_process_other_than_the_main_one_shows_and_stores_nothing(
    even: LoadedBatches,
    run: Run,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(Accelerator, "is_main_process", False)
    tracked = replace(run, tracking=Tracking(("tensorboard",), tmp_path / "curves", "run"))
    optimise(ColourObjective(), even, tracked)
    assert capsys.readouterr() == ("", "")
    assert not any(tmp_path.iterdir())


def read_curves(folder: Path) -> dict[str, dict[int, float]]:
    """Values by step of every curve; no step may appear twice."""
    events = EventAccumulator(str(folder / "run")).Reload()
    curves = {}
    for name in events.Tags()["scalars"]:
        points = events.Scalars(name)
        curves[name] = {point.step: point.value for point in points}
        assert len(curves[name]) == len(points)
    return curves


@pytest.mark.usefixtures("clock")
def test_curves_contain_every_step_and_epoch(
    batches: LoadedBatches, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    take_step = Optimisation.step

    def recorded(optimisation: Optimisation, *arguments: object):
        steps.append(take_step(optimisation, *arguments))
        return steps[-1]

    monkeypatch.setattr(Optimisation, "step", recorded)
    monkeypatch.setattr(ColourObjective, "epoch_metrics", lambda _: {"validation_nll": 0.5})
    few = replace(batches, labelled_images=batches.labelled_images[:20])
    tracked = replace(run, tracking=Tracking(("tensorboard",), tmp_path, "run"))
    fitted = optimise(ColourObjective(), few, tracked)
    curves = read_curves(tmp_path)
    for name in ("loss", "learning_rate", "gradient_norm"):
        values = {n: pytest.approx(getattr(step, name)) for n, step in enumerate(steps)}
        assert curves[f"step/{name}"] == values
    assert len(steps) == 6
    seconds = [2, 3, 3] * 2
    assert curves["step/images_per_second"] == {
        n: pytest.approx(images / seconds[n]) for n, images in enumerate([8, 8, 4] * 2)
    }
    assert curves["step/waiting_share"] == {n: pytest.approx(1 / s) for n, s in enumerate(seconds)}
    losses = [pytest.approx(loss) for loss in fitted.loss_by_epoch]
    assert curves["epoch/mean_loss"] == {2: losses[0], 5: losses[1]}
    assert curves["epoch/validation_nll"] == {2: 0.5, 5: 0.5}


class FakeTracker:
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
    batches: LoadedBatches,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    option: str,
) -> None:
    monkeypatch.setitem(accelerate.tracking.LOGGER_TYPE_TO_CLASS, name, FakeTracker)
    FakeTracker.calls.clear()
    tracking = Tracking((name,), tmp_path / "curves", "r", {"seed": "1"})
    few = replace(batches, labelled_images=batches.labelled_images[:8])
    optimise(ColourObjective(), few, replace(run, tracking=tracking))
    (project, options), *calls = FakeTracker.calls
    assert project == "eulerlora"
    assert options[option] == "r"
    names = ("gradient_norm", "images_per_second", "learning_rate", "loss", "waiting_share")
    of_step, of_epoch = [f"step/{name}" for name in names], ["epoch/mean_loss"]
    logged = [(step, curves) for step in (0, 1) for curves in (of_step, of_epoch)]
    assert calls == [("start",), ("settings", {"seed": "1"}), *logged, ("finish",)]


def test_a_tracker_that_is_not_installed_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(SettingsError, match="trackio"):
        Tracking(("trackio",), tmp_path, "run").check()

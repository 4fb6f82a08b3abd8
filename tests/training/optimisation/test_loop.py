"""The optimisation loop.

Progress of a run as lines, as a bar, and as curves of a tracker.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import accelerate.tracking
import pytest
import torch
from accelerate import Accelerator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

from eulerlora_contract.errors import NonFiniteError, SettingsError
from tests.eulerlora_contract.test_progress import Terminal, on_terminal
from tests.training.conftest import plain_view
from training.data.dataset import DataSettings
from training.data.datasets import read_dataset
from training.optimisation.batches import LoadedBatches, RunLength
from training.optimisation.loop import Curves, ProgressDisplay, optimise, run_rates
from training.optimisation.run import Progress, Run, Tracker, Tracking
from training.optimisation.step import Objective, Step
from training.recipe.schema import OptimisationSettings

SETTINGS = OptimisationSettings(
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


LENGTH = RunLength(images=100, batch_size=8, epochs=4)
START = Progress()


def test_rate_and_waiting_time_are_those_of_the_session() -> None:
    start = Progress(step=26, seconds=5_000, waited_s=4_000, epoch_loss=9.0, epoch_steps=13)
    now = Progress(step=39, seconds=5_010, waited_s=4_001, epoch_loss=13.0, epoch_steps=13)
    assert run_rates(now, start, LENGTH) == "loss 1.000, 10 images/s, 10% waiting"


def test_without_a_terminal_lines_show_the_steps_of_all_epochs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eulerlora_contract.progress._LINE_INTERVAL_S", 1e-9)
    display = ProgressDisplay(LENGTH, START, "stage 1/2", enabled=True)
    progress = START
    for _ in range(52):
        progress = progress.after(1.0, seconds=4, waited_s=0)
        display.show(progress)
    display.print("epoch 4/4: 1.0000")
    display.close()
    output = capsys.readouterr()
    estimate, last = output.out.splitlines()
    assert estimate.startswith("stage 1/2: 4.00 s per step: about 3 min for 46 more steps; ")
    assert last == "stage 1/2: epoch 4/4: 1.0000"
    assert [line.rsplit(",", 1)[0] for line in output.err.splitlines()] == [
        f"stage 1/2: epoch {1 + (step - 1) // 13}/4: {step}/52 steps, loss 1.000, 2 images/s, 0% "
        "waiting"
        for step in range(1, 53)
    ]


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
    """Values by step of every curve; no step may appear twice."""
    events = EventAccumulator(str(folder / "run")).Reload()
    curves = {}
    for name in events.Tags()["scalars"]:
        points = events.Scalars(name)
        curves[name] = {point.step: point.value for point in points}
        assert len(curves[name]) == len(points)
    return curves


def test_curves_contain_every_step_and_epoch(tmp_path: Path) -> None:
    """Steps of 2 s, a quarter of it waiting."""
    writer, progress = Curves(Tracking(("tensorboard",), tmp_path, "run"), 0), START
    for _ in range(6):
        before, progress = progress, progress.after(2.0, seconds=2.0, waited_s=0.5)
        writer.add_step(STEP, before, progress, SHORT)
        if progress.step % SHORT.steps_per_epoch == 0:
            writer.add_epoch(progress, {"validation_nll": 0.5})
    writer.close()
    curves = read_curves(tmp_path)
    assert curves["step/loss"] == dict.fromkeys(range(6), 2.0)
    assert curves["step/learning_rate"] == dict.fromkeys(range(6), 0.5)
    assert curves["step/gradient_norm"] == dict.fromkeys(range(6), 3.0)
    assert curves["step/images_per_second"] == {0: 4, 1: 4, 2: 2, 3: 4, 4: 4, 5: 2}
    assert curves["step/waiting_share"] == dict.fromkeys(range(6), 0.25)
    assert curves["epoch/mean_loss"] == {2: 2.0, 5: 2.0}
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
    with pytest.raises(SettingsError, match="trackio"):
        Tracking(("trackio",), tmp_path, "run").check()


def test_a_process_other_than_the_main_one_shows_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eulerlora_contract.progress._LINE_INTERVAL_S", 1e-9)
    display = ProgressDisplay(LENGTH, START, "", enabled=False)
    display.show(START.after(1.0, 1.0, 0.0))
    display.print("epoch 1/4: 1.0000")
    display.close()
    assert capsys.readouterr() == ("", "")

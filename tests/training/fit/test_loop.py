"""The optimisation loop."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from eulerlora_client.errors import NonFiniteError
from tests.training.conftest import plain_view
from training.data.datasets import read_dataset
from training.fit.batches import LoadedBatches
from training.fit.loop import fit
from training.fit.optimisation import Objective
from training.fit.run import Run
from training.recipe.schema import DataSettings, OptimisationSettings

SETTINGS = OptimisationSettings(
    epochs=2, batch_size=8, learning_rate=0.1, warmup_steps=1, weight_decay=0.0, workers=0
)


class ColourObjective(Objective[int]):
    """A linear classifier of an image's mean colour; `disturb` changes the loss of a step.

    weights: the classifier's weight before each call.
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
    fit(ours, batches, settings, run)
    if micro_batch_rows is not None:
        assert len(ours.weights) > 2 * -(-batches.images // 8)
    optimiser = torch.optim.AdamW(plain.network.parameters(), lr=0.0, weight_decay=0.1)
    last = 2 * -(-batches.images // 8) - 1
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
        fit(objective, batches, SETTINGS, run)
    assert all(parameter.isfinite().all() for parameter in objective.network.parameters())


def test_a_non_finite_gradient_stops_the_run(batches: LoadedBatches, run: Run) -> None:
    # The square root adds 0 to the loss, with an infinite slope.
    objective = ColourObjective(lambda loss, _: loss + torch.sqrt(loss - loss.detach()))
    with pytest.raises(NonFiniteError, match="gradient norm at step 0"):
        fit(objective, batches, SETTINGS, run)


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

    settings = SETTINGS.model_copy(update={"state_every_s": 0.0})
    whole = ColourObjective()
    fitted = fit(whole, batches, settings, run)
    run.state.unlink()
    with pytest.raises(StoppedError):
        fit(ColourObjective(stop), batches, settings, run)
    rest = ColourObjective()
    resumed = replace(run, resume=True)
    continued = fit(rest, batches, settings, resumed)
    assert len(rest.weights) < len(whole.weights)
    torch.testing.assert_close(
        rest.network.state_dict(), whole.network.state_dict(), atol=0, rtol=0
    )
    assert continued.final_loss == pytest.approx(fitted.final_loss)


class OneEpochObjective(ColourObjective):
    """An objective that is finished after one epoch; its state is in `averages`."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = torch.zeros(())

    def after_epoch(self) -> None:
        self.epochs += 1

    @property
    def finished(self) -> bool:
        return bool(self.epochs)

    def averages(self) -> dict[str, Tensor]:
        return {"epochs": self.epochs}


def test_a_finished_objective_ends_the_run_early_and_for_good(
    batches: LoadedBatches, run: Run
) -> None:
    steps = -(-batches.images // 8)
    settings = SETTINGS.model_copy(update={"epochs": 5})
    objective = OneEpochObjective()
    fitted = fit(objective, batches, settings, run)
    assert fitted.steps == len(objective.weights) == steps
    assert fitted.images_per_second == pytest.approx(batches.images / fitted.seconds)
    again = OneEpochObjective()
    assert fit(again, batches, settings, replace(run, resume=True)).steps == steps
    assert again.weights == []


def test_a_finished_run_takes_no_more_steps(batches: LoadedBatches, run: Run) -> None:
    done, again = ColourObjective(), ColourObjective()
    first = fit(done, batches, SETTINGS, run)
    resumed = replace(run, resume=True)
    assert fit(again, batches, SETTINGS, resumed) == first
    assert again.weights == []
    torch.testing.assert_close(
        again.network.state_dict(), done.network.state_dict(), atol=0, rtol=0
    )


def test_without_resume_an_older_state_is_ignored(batches: LoadedBatches, run: Run) -> None:
    fit(ColourObjective(), batches, SETTINGS, run)
    again = ColourObjective()
    fit(again, batches, SETTINGS, run)
    assert len(again.weights) == 2 * -(-batches.images // 8)

"""Optimisation that both kinds of training share."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from eulerlora.errors import NonFiniteError, SettingsError
from training.data.augmentation import Transform, evaluation_view
from training.data.datasets import read_dataset
from training.data.labelled_images import LabelledImage
from training.fit.batches import epoch_batches
from training.fit.loop import fit
from training.fit.objective import Objective
from training.fit.run import Run
from training.recipe.schema import DataSettings, OptimisationSettings

SETTINGS = OptimisationSettings(
    epochs=2, batch_size=8, learning_rate=0.1, warmup_steps=1, weight_decay=0.0, workers=0
)


class ColourObjective(Objective):
    """A linear classifier of an image's mean colour; `disturb` changes a step's loss."""

    def __init__(self, disturb: Callable[[Tensor, int], Tensor] = lambda loss, _: loss) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3)
        self.disturb = disturb
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor, labels: Tensor, step: int) -> Tensor:
        self.seen.append(self.linear.weight.detach().clone())
        logits = self.linear(images.mean(dim=(2, 3)))
        return self.disturb(nn.functional.cross_entropy(logits, labels, reduction="sum"), step)

    def weight(self, labels: Tensor) -> Tensor:
        return torch.tensor(float(len(labels)))

    def rows_per_image(self) -> int:
        return 4


@pytest.fixture
def images(image_folder: Path) -> list[LabelledImage]:
    data = read_dataset(DataSettings(kind="imagefolder", path="train"), image_folder)
    return list(data.parts["train"])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(Accelerator(cpu=True), seed=5, recipe=SETTINGS, state=tmp_path / "state.safetensors")


def small_view(_: int) -> Transform:
    return evaluation_view(8)


def test_a_run_lowers_the_loss_and_takes_one_step_a_batch(
    images: list[LabelledImage], run: Run
) -> None:
    settings = SETTINGS.model_copy(update={"epochs": 20})
    fitted = fit(ColourObjective(), images, small_view, settings, run)
    assert fitted.steps == 20 * -(-len(images) // 8)
    assert fitted.final_loss < 0.5 * torch.tensor(3.0).log()
    assert fitted.images_per_second == pytest.approx(20 * len(images) / fitted.seconds)
    assert 0 < fitted.waiting_share < 1


def test_the_first_update_of_a_warm_up_changes_nothing(
    images: list[LabelledImage], run: Run
) -> None:
    objective = ColourObjective()
    fit(objective, images, small_view, SETTINGS, run)
    assert torch.equal(objective.seen[1], objective.seen[0])
    assert not torch.equal(objective.seen[2], objective.seen[1])


@pytest.mark.parametrize("micro_batch_rows", [None, 12])
def test_a_run_equals_a_loop_written_out_with_adamw(
    images: list[LabelledImage], run: Run, micro_batch_rows: int | None
) -> None:
    changes = {"clip_norm": 0.01, "weight_decay": 0.1, "micro_batch_rows": micro_batch_rows}
    settings = SETTINGS.model_copy(update=changes)
    ours, plain = ColourObjective(), ColourObjective()
    fit(ours, images, small_view, settings, run)
    if micro_batch_rows is not None:
        assert len(ours.seen) > 2 * -(-len(images) // 8)
    optimiser = torch.optim.AdamW(plain.parameters(), lr=0.0, weight_decay=0.1)
    last = 2 * -(-len(images) // 8) - 1
    step = 0
    for epoch in range(2):
        for pixels, labels in epoch_batches(images, evaluation_view(8), settings, 5, epoch):
            angle = torch.tensor(torch.pi * (step - 1) / last)
            optimiser.param_groups[0]["lr"] = 0.1 * float(step > 0) * float(1 + angle.cos()) / 2
            optimiser.zero_grad()
            (plain(pixels, labels, step) / len(labels)).backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
            optimiser.step()
            step += 1
    torch.testing.assert_close(ours.state_dict(), plain.state_dict(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_the_run_before_its_step(
    images: list[LabelledImage], run: Run, value: float
) -> None:
    objective = ColourObjective(lambda loss, step: loss * (value if step == 2 else 1.0))
    with pytest.raises(NonFiniteError, match="loss at step 2"):
        fit(objective, images, small_view, SETTINGS, run)
    assert all(parameter.isfinite().all() for parameter in objective.parameters())


def test_a_gradient_that_is_not_finite_stops_the_run(images: list[LabelledImage], run: Run) -> None:
    # The square root adds 0 to the loss, with an infinite slope.
    objective = ColourObjective(lambda loss, _: loss + torch.sqrt(loss - loss.detach()))
    with pytest.raises(NonFiniteError, match="gradient norm at step 0"):
        fit(objective, images, small_view, SETTINGS, run)


def test_a_run_shorter_than_its_warm_up_is_refused_at_once(
    images: list[LabelledImage], run: Run
) -> None:
    settings = SETTINGS.model_copy(update={"warmup_steps": 500})
    with pytest.raises(SettingsError, match="warm-up"):
        fit(ColourObjective(), images, small_view, settings, run)


class StoppedError(Exception):
    """Ends a run at a step of a test's choice, as a crash would."""


@pytest.mark.parametrize("stop_at", [2, 5, 6, 9])
def test_a_run_continued_from_its_state_ends_with_the_same_weights(
    images: list[LabelledImage], run: Run, stop_at: int
) -> None:
    def stop(loss: Tensor, step: int) -> Tensor:
        if step == stop_at:
            raise StoppedError
        return loss

    settings = SETTINGS.model_copy(update={"state_every_s": 0.0})
    whole = ColourObjective()
    fitted = fit(whole, images, small_view, settings, run)
    run.state.unlink()
    with pytest.raises(StoppedError):
        fit(ColourObjective(stop), images, small_view, settings, run)
    rest = ColourObjective()
    resumed = replace(run, resume=True)
    continued = fit(rest, images, small_view, settings, resumed)
    assert len(rest.seen) < len(whole.seen)
    torch.testing.assert_close(rest.state_dict(), whole.state_dict(), atol=0, rtol=0)
    assert continued.final_loss == pytest.approx(fitted.final_loss)


def test_a_finished_run_is_not_run_again(images: list[LabelledImage], run: Run) -> None:
    done, again = ColourObjective(), ColourObjective()
    first = fit(done, images, small_view, SETTINGS, run)
    resumed = replace(run, resume=True)
    assert fit(again, images, small_view, SETTINGS, resumed) == first
    assert again.seen == []
    torch.testing.assert_close(again.state_dict(), done.state_dict(), atol=0, rtol=0)


def test_without_resume_an_old_state_is_not_used(images: list[LabelledImage], run: Run) -> None:
    fit(ColourObjective(), images, small_view, SETTINGS, run)
    again = ColourObjective()
    fit(again, images, small_view, SETTINGS, run)
    assert len(again.seen) == 2 * -(-len(images) // 8)

"""training.loop: optimisation that both kinds of training share."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from eulerlora.errors import NonFiniteError, SettingsError
from training.augment import Transform, evaluation_view
from training.datasets import LabelledImage, read_dataset
from training.loop import epoch_batches, fit
from training.recipe import DataSettings, OptimisationSettings

CPU = torch.device("cpu")
SETTINGS = OptimisationSettings(
    epochs=2, batch_size=8, learning_rate=0.1, warmup_steps=1, weight_decay=0.0, workers=0
)


@pytest.fixture
def images(image_folder: Path) -> list[LabelledImage]:
    data = read_dataset(DataSettings(kind="imagefolder", path="train"), image_folder)
    return list(data.parts["train"])


def small_view(_: int) -> Transform:
    return evaluation_view(8)


def linear_loss(model: nn.Linear) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda pixels, labels: nn.functional.cross_entropy(
        model(pixels.mean(dim=(2, 3))), labels
    )


def test_a_run_lowers_the_loss_and_takes_one_step_a_batch(images: list[LabelledImage]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    settings = SETTINGS.model_copy(update={"epochs": 20})
    batches = -(-len(images) // 8)
    fitted = fit(list(model.parameters()), linear_loss(model), images, small_view, settings, 0, CPU)
    assert fitted.steps == 20 * batches
    assert fitted.final_loss < 0.5 * torch.tensor(3.0).log()


def test_the_first_update_of_a_warm_up_changes_nothing(images: list[LabelledImage]) -> None:
    model = nn.Linear(3, 3)
    before = model.weight.detach().clone()
    seen: list[Tensor] = []

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        seen.append(model.weight.detach().clone())
        return linear_loss(model)(pixels, labels)

    fit(list(model.parameters()), loss, images, small_view, SETTINGS, 0, CPU)
    assert torch.equal(seen[1], before)
    assert not torch.equal(seen[2], before)


def test_a_run_equals_a_loop_written_out_with_adamw(images: list[LabelledImage]) -> None:
    torch.manual_seed(0)
    ours, plain = nn.Linear(3, 3), nn.Linear(3, 3)
    plain.load_state_dict(ours.state_dict())
    settings = SETTINGS.model_copy(update={"clip_norm": 0.01, "weight_decay": 0.1})
    fit(list(ours.parameters()), linear_loss(ours), images, small_view, settings, 5, CPU)
    optimiser = torch.optim.AdamW(plain.parameters(), lr=0.0, weight_decay=0.1)
    total = 2 * -(-len(images) // 8)
    step = 0
    for epoch in range(2):
        for pixels, labels in epoch_batches(images, evaluation_view(8), settings, 5, epoch):
            share = (
                0.0
                if step == 0
                else (1 + torch.cos(torch.pi * torch.tensor((step - 1) / (total - 1)))) / 2
            )
            optimiser.param_groups[0]["lr"] = 0.1 * float(share)
            optimiser.zero_grad()
            linear_loss(plain)(pixels, labels).backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
            optimiser.step()
            step += 1
    torch.testing.assert_close(ours.state_dict(), plain.state_dict(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_the_run_before_its_step(
    images: list[LabelledImage], value: float
) -> None:
    model = nn.Linear(3, 3)
    steps = 0

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        return linear_loss(model)(pixels, labels) * (value if steps == 3 else 1.0)

    with pytest.raises(NonFiniteError, match="loss at step 2"):
        fit(list(model.parameters()), loss, images, small_view, SETTINGS, 0, CPU)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_gradient_that_is_not_finite_stops_the_run(images: list[LabelledImage]) -> None:
    model = nn.Linear(3, 3)

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        spike = model.weight[0, 0] - model.weight[0, 0].detach()
        return linear_loss(model)(pixels, labels) + torch.sqrt(spike)  # 0 with an infinite slope

    with pytest.raises(NonFiniteError, match="gradient norm at step 0"):
        fit(list(model.parameters()), loss, images, small_view, SETTINGS, 0, CPU)


def test_a_run_shorter_than_its_warm_up_is_refused_at_once(images: list[LabelledImage]) -> None:
    settings = SETTINGS.model_copy(update={"warmup_steps": 500})
    with pytest.raises(SettingsError, match="warm-up"):
        fit([], linear_loss(nn.Linear(3, 3)), images, small_view, settings, 0, CPU)


def test_every_epoch_sees_every_image_once_in_an_order_of_its_own(
    images: list[LabelledImage],
) -> None:
    def order(seed: int, epoch: int, shuffle: bool = True) -> list[int]:
        numbered = [
            LabelledImage(each.name, each.source, index) for index, each in enumerate(images)
        ]
        settings = SETTINGS.model_copy(update={"shuffle": shuffle})
        batches = list(epoch_batches(numbered, evaluation_view(8), settings, seed, epoch))
        assert [len(labels) for _, labels in batches][:-1] == [8] * (len(batches) - 1)
        return [label for _, labels in batches for label in labels.tolist()]

    everything = list(range(len(images)))
    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(*key)) for key in ((0, 0), (0, 1), (1, 0))}) == 3
    assert sorted(order(0, 0)) == everything
    assert order(0, 0, shuffle=False) == everything


def test_worker_processes_change_nothing(images: list[LabelledImage]) -> None:
    def epoch(workers: int) -> Tensor:
        settings = SETTINGS.model_copy(update={"workers": workers})
        batches = epoch_batches(images[:12], evaluation_view(8), settings, 0, 0)
        return torch.cat([pixels for pixels, _ in batches])

    assert torch.equal(epoch(0), epoch(2))

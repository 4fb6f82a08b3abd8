"""The same loss however a batch is cut."""

import os
import socket
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from eulerlora.coefficients import draw_trajectories, on_stacked_ranks
from eulerlora.rows import Rows
from tests.conftest import random_network
from training.adaptation.objective import AdapterObjective, step_generator
from training.data.augmentation import training_view
from training.data.datasets import read_dataset
from training.data.labelled_images import LabelledImage
from training.fit.loop import fit
from training.fit.run import Run
from training.recipe.schema import AdapterTraining, DataSettings

WEIGHTS = torch.tensor([0.2, 0.5, 0.3])
TRAINING = AdapterTraining(
    epochs=2, batch_size=10, learning_rate=1e-2, warmup_steps=1, samples=2, workers=0
)


@pytest.fixture
def objective() -> AdapterObjective:
    return AdapterObjective(random_network(), TRAINING, WEIGHTS, seed=4)


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(7, 3, 32, 32, generator=generator), torch.tensor([0, 1, 2, 1, 0, 2, 2])


def gradient(objective: AdapterObjective, parts: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    objective.zero_grad()
    weight = sum(objective.weight(labels) for _, labels in parts)
    for images, labels in parts:
        (objective(images, labels, 3) / weight).backward()
    return [each.grad for each in objective.parameters() if each.grad is not None]


def test_the_loss_is_that_of_a_loop_over_trajectories(
    objective: AdapterObjective, batch: tuple[Tensor, Tensor]
) -> None:
    images, labels = batch
    network, settings = objective.network, objective.network.settings
    own = draw_trajectories(4, 2, settings, step_generator(4, 3))
    losses = []
    for trajectory, coefficients in enumerate(on_stacked_ranks(own, 2)):
        rows = Rows(torch.arange(7), torch.full((7,), trajectory // 2), (1,) * 7)
        logits = network(images, rows, coefficients.expand(7, -1, -1, -1))
        losses.append(torch.nn.functional.cross_entropy(logits, labels, weight=WEIGHTS))
    found = objective(images, labels, 3) / objective.weight(labels)
    torch.testing.assert_close(found, torch.stack(losses).mean())


@pytest.mark.parametrize("size", [1, 2, 3])
def test_micro_batches_have_the_gradient_of_the_whole_batch(
    objective: AdapterObjective, batch: tuple[Tensor, Tensor], size: int
) -> None:
    whole = gradient(objective, [batch])
    parts = list(zip(batch[0].split(size), batch[1].split(size), strict=True))
    for one, other in zip(whole, gradient(objective, parts), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_frozen_weights_get_no_gradient(
    objective: AdapterObjective, batch: tuple[Tensor, Tensor]
) -> None:
    gradient(objective, [batch])
    assert all(each.grad is None for each in objective.network.backbone.parameters())
    assert all(each.grad is not None for _, each in objective.network.adapter_parameters())


def test_every_step_has_draws_of_its_own(
    objective: AdapterObjective, batch: tuple[Tensor, Tensor]
) -> None:
    losses = [float(objective(*batch, step).detach()) for step in (3, 3, 4)]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize(
    "changes", [{}, {"micro_batch_rows": 8, "activation_checkpointing": True}], ids=str
)
def test_two_processes_have_the_losses_of_one(
    image_folder: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    _losses(0, 1, 0, image_folder, tmp_path / "one", TRAINING)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = TRAINING.model_copy(update=changes)
    spawn(_losses, (2, port, image_folder, tmp_path / "two", settings), nprocs=2)
    one, two = (torch.load(tmp_path / name, weights_only=True) for name in ("one", "two"))
    assert len(one) >= 10
    torch.testing.assert_close(one[:10], two[:10], atol=1e-5, rtol=1e-5)


def _losses(
    process: int, processes: int, port: int, images: Path, out: Path, settings: AdapterTraining
) -> None:
    """Writes the losses of all steps of a short run to `out`."""
    torch.set_num_threads(1)
    if processes > 1:
        os.environ |= {
            "RANK": str(process),
            "LOCAL_RANK": str(process),
            "WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    data = read_dataset(DataSettings(kind="imagefolder", path="train"), images)
    train: list[LabelledImage] = list(data.parts["train"])
    objective = AdapterObjective(random_network(), settings, WEIGHTS, seed=4)
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == processes
    found: list[float] = []
    reduce = accelerator.reduce

    def recording(tensor: Tensor, reduction: str) -> Tensor:
        result: Tensor = reduce(tensor, reduction)
        found.append(float(result))
        return result

    accelerator.reduce = recording
    run = Run(accelerator, 0, settings, out.with_suffix(f".{process}.safetensors"))
    fit(objective, train, lambda epoch: training_view(32, 0, epoch, "paper"), settings, run)
    if process == 0:
        losses = found[1::3] if processes > 1 else found[1::2]
        torch.save(torch.tensor(losses), out)

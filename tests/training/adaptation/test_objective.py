"""The objective of adapter training; the same losses for any number of processes."""

import os
import socket
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from eulerlora.nn.rows import COEFFICIENTS, RowDraws, Rows
from eulerlora.nn.runtime import predict_images
from eulerlora.settings import Draw, Preprocessing
from tests.conftest import random_network
from training.adaptation.objective import (
    AdapterDraw,
    AdapterObjective,
    target_probabilities,
    trajectory_loss,
)
from training.data.augmentation import training_view
from training.data.datasets import read_dataset
from training.data.images import OUTSIDE
from training.fit.batches import LoadedBatches
from training.fit.loop import fit
from training.fit.optimisation import Optimisation, Step
from training.fit.run import Run
from training.recipe.schema import AdapterTraining, DataSettings

WEIGHTS = torch.tensor([0.2, 0.5, 0.3])
TRAINING = AdapterTraining(
    epochs=2, batch_size=10, learning_rate=1e-2, warmup_steps=1, samples=2, workers=0
)
PARTS = TRAINING.model_copy(update={"micro_batch_rows": 8, "activation_checkpointing": True})

Batch = tuple[Tensor, Tensor]


def make_objective(recompute: bool = False) -> AdapterObjective:
    network = random_network()
    return AdapterObjective(network, 2, trajectory_loss, WEIGHTS, recompute=recompute)


@pytest.fixture
def objective() -> AdapterObjective:
    return make_objective()


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(7, 3, 32, 32, generator=generator), torch.tensor([0, 1, 2, 1, 0, 2, 2])


def coefficients_of(draw: AdapterDraw) -> Tensor:
    return draw.images(1).blocks[COEFFICIENTS]


def gradient(objective: AdapterObjective, parts: list[Batch]) -> list[Tensor]:
    network = objective.network
    network.zero_grad()
    weight = sum(objective.weight(labels) for _, labels in parts)
    draw = objective.draw(4, 3, 0)
    for images, labels in parts:
        (objective.loss(network, images, labels, draw) / weight).backward()
    return [p.grad for p in network.parameters() if p.grad is not None]


def test_the_loss_is_that_of_a_loop_over_trajectories(
    objective: AdapterObjective, batch: Batch
) -> None:
    images, labels = batch
    draw = objective.draw(4, 3, 0)
    losses = []
    for trajectory, coefficients in enumerate(coefficients_of(draw)):
        rows = Rows(torch.arange(7), torch.full((7,), trajectory // 2), (1,) * 7)
        logits = objective.network(
            images, rows, RowDraws.of_coefficients(coefficients.expand(7, -1, -1, -1))
        )
        losses.append(torch.nn.functional.cross_entropy(logits, labels, weight=WEIGHTS))
    assert len(losses) == objective.rows_per_image == 4
    loss = objective.loss(objective.network, images, labels, draw) / objective.weight(labels)
    torch.testing.assert_close(loss, torch.stack(losses).mean())


def test_every_adapter_may_see_a_view_of_its_own(objective: AdapterObjective, batch: Batch) -> None:
    images, labels = batch
    views = torch.stack([images, images.flip(-1)], dim=1)
    draw = objective.draw(4, 3, 0)
    losses = []
    for trajectory, coefficients in enumerate(coefficients_of(draw)):
        adapter = trajectory // 2
        rows = Rows(torch.arange(7), torch.full((7,), adapter), (1,) * 7)
        logits = objective.network(
            views[:, adapter], rows, RowDraws.of_coefficients(coefficients.expand(7, -1, -1, -1))
        )
        losses.append(torch.nn.functional.cross_entropy(logits, labels, weight=WEIGHTS))
    loss = objective.loss(objective.network, views, labels, draw) / objective.weight(labels)
    torch.testing.assert_close(loss, torch.stack(losses).mean())
    assert loss != objective.loss(objective.network, images, labels, draw)


def test_logits_are_adjusted_for_images_of_a_class_only(batch: Batch) -> None:
    images, labels = batch
    labels = labels.clone()
    labels[5] = OUTSIDE
    adjustment = torch.tensor([0.5, -1.0, 2.0])
    network = random_network()
    adjusted = AdapterObjective(
        network, 1, trajectory_loss, torch.ones(3), logit_adjustment=adjustment
    )
    plain = AdapterObjective(network, 1, trajectory_loss, torch.ones(3))
    draw = plain.draw(0, 0, 0)
    rows = Rows.of([1] * 7, 2)
    logits = network(images, rows, draw.images(7)).unflatten(0, (7, 2))
    shifted = logits + adjustment
    shifted[5] = logits[5]
    expected = trajectory_loss(shifted, target_probabilities(labels, 3), torch.ones(7))
    torch.testing.assert_close(adjusted.loss(network, images, labels, draw), expected)
    assert expected != plain.loss(network, images, labels, draw)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_micro_batches_have_the_gradient_of_the_whole_batch(
    objective: AdapterObjective, batch: Batch, size: int
) -> None:
    whole = gradient(objective, [batch])
    parts = list(zip(batch[0].split(size), batch[1].split(size), strict=True))
    torch.testing.assert_close(gradient(objective, parts), whole, atol=1e-5, rtol=1e-5)


def test_coefficients_are_a_function_of_seed_and_step(objective: AdapterObjective) -> None:
    first = coefficients_of(objective.draw(4, 3, process=0))
    assert first.shape == (4, 2, 4, 8)  # (trajectories, blocks, projections, ranks)
    assert torch.equal(coefficients_of(objective.draw(4, 3, process=1)), first)
    assert not torch.equal(coefficients_of(objective.draw(4, 4, process=0)), first)
    assert not torch.equal(coefficients_of(objective.draw(5, 3, process=0)), first)


def test_training_without_sampling_has_the_loss_of_mode_det(batch: Batch) -> None:
    images, labels = batch
    network = random_network()
    plain = AdapterObjective(network, 1, trajectory_loss, torch.ones(3), sampling=False)
    outputs = predict_images(network, images, [Draw(mode="det")] * 7)
    losses = [
        -output.log_probabilities[:, label].mean()
        for output, label in zip(outputs, labels, strict=True)
    ]
    loss = plain.loss(network, images, labels, plain.draw(4, 3, 0))
    torch.testing.assert_close(loss, torch.stack(losses).sum().float())


def test_dropout_is_a_function_of_seed_step_and_process(batch: Batch) -> None:
    network = random_network()
    dropping = AdapterObjective(
        network, 1, trajectory_loss, torch.ones(3), sampling=False, dropout=0.5
    )

    def loss(seed: int, step: int, process: int) -> float:
        return dropping.loss(network, *batch, dropping.draw(seed, step, process)).item()

    first = loss(4, 3, 0)
    assert loss(4, 3, 0) == first
    assert len({first, loss(5, 3, 0), loss(4, 4, 0), loss(4, 3, 1)}) == 4


def test_two_processes_have_the_losses_of_one(image_folder: Path, tmp_path: Path) -> None:
    (expected,) = _write_losses(0, 1, 0, image_folder, tmp_path / "one", [TRAINING])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    runs = [TRAINING, PARTS]
    spawn(_write_losses, (2, port, image_folder, tmp_path / "two", runs), nprocs=2)
    assert len(expected) == 10
    for losses in torch.load(tmp_path / "two", weights_only=True):
        assert losses == pytest.approx(expected, abs=1e-5, rel=1e-5)


def _write_losses(
    process: int,
    processes: int,
    port: int,
    images: Path,
    out: Path,
    runs: list[AdapterTraining],
) -> list[list[float]]:
    """Returns the losses of all steps for each of `runs`; process 0 writes them to `out`."""
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
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == processes
    losses: list[list[float]] = []
    take_step = Optimisation.step

    def recording_step(optimisation: Optimisation, *arguments: object) -> Step:
        step = take_step(optimisation, *arguments)  # type: ignore[arg-type]
        losses[-1].append(step.loss)
        return step

    for number, settings in enumerate(runs):
        losses.append([])
        objective = make_objective(settings.activation_checkpointing)
        state = out.with_suffix(f".{process}-{number}.safetensors")
        run = Run(accelerator, 4, settings, state)
        batches = LoadedBatches(
            data.parts["train"],
            lambda epoch: training_view(Preprocessing(size=32), 0, epoch, "paper"),
            settings,
            seed=0,
            shard=run.shard,
        )
        with patch.object(Optimisation, "step", recording_step):
            fit(objective, batches, settings, run)
    if process == 0:
        torch.save(losses, out)
    return losses

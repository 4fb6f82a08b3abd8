"""The objective of adapter training: losses, draws and dropout, for any number of processes."""

import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import Generator, Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F

from eulerlora.nn.method import COEFFICIENTS, RowDraws
from eulerlora.nn.network import AdaptedVisionTransformer, predict_images
from eulerlora.nn.rows import Rows, of_views
from eulerlora.settings import Draw, Preprocessing
from eulerlora_contract.checkpoints import ClassName
from tests.conftest import random_network
from training.adaptation.objective import AdapterObjective, DropoutBlock, objective_and_batches
from training.data.augmentation import training_view
from training.data.dataset import DataSettings
from training.data.datasets import read_dataset
from training.data.images import OUTSIDE, ImageParts, LabelledImage, OodSet
from training.optimisation.batches import IGNORED, LoadedBatches
from training.optimisation.loop import optimise
from training.optimisation.run import Run
from training.optimisation.step import Optimisation
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe, AdapterTraining

WEIGHTS = torch.tensor([0.2, 0.5, 0.3])
COUNTS = torch.tensor([6, 3, 1])
TRAINING = AdapterTraining(
    epochs=2, batch_size=10, learning_rate=1e-2, warmup_steps=1, samples=2, workers=0
)
PARTS = TRAINING.model_copy(update={"micro_batch_rows": 8})

Batch = tuple[Tensor, Tensor]


def make_objective() -> AdapterObjective:
    return AdapterObjective(random_network(), AdapterTraining(samples=2), WEIGHTS)


@pytest.fixture
def objective() -> AdapterObjective:
    return make_objective()


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(7, 3, 32, 32, generator=generator), torch.tensor([0, 1, 2, 1, 0, 2, 2])


@pytest.mark.parametrize("views", ["shared", "own"])
def test_the_loss_is_that_of_a_loop_over_trajectories(
    objective: AdapterObjective, batch: Batch, views: str
) -> None:
    images, labels = batch
    seen = [images, images.flip(-1) if views == "own" else images]
    draw = objective.draw(4, 3, 0)
    losses = []
    for trajectory, coefficients in enumerate(draw.row_draws(1).blocks[COEFFICIENTS]):
        adapter = trajectory // 2
        rows = Rows.grouped(torch.arange(7), torch.full((7,), adapter), (1,) * 7)
        logits = objective.network(
            seen[adapter], rows, RowDraws.of_coefficients(coefficients.expand(7, -1, -1, -1))
        )
        losses.append(torch.nn.functional.cross_entropy(logits, labels, weight=WEIGHTS))
    assert len(losses) == objective.rows_per_image == 4
    shown = torch.stack(seen, dim=1) if views == "own" else images
    loss = objective.loss(objective.network, shown, labels, draw) / objective.weight(labels)
    torch.testing.assert_close(loss, torch.stack(losses).mean())


@pytest.mark.parametrize("augmented_views", [1, 2])
def test_the_trajectories_of_an_image_see_its_views(batch: Batch, augmented_views: int) -> None:
    images, labels = batch
    network, seen = random_network(), []
    if augmented_views == 2:
        images = torch.stack([images, images / 2], dim=1)

    def recorded(images: Tensor, rows: Rows, *rest: RowDraws, block: object) -> Tensor:
        seen.append(images[rows.image].unflatten(0, (7, 2, 2)))
        return network(images, rows, *rest, block=block)

    objective = AdapterObjective(network, AdapterTraining(samples=2, views=4), torch.ones(3))
    losses = [objective.loss(recorded, images, labels, objective.draw(0, s, 0)) for s in (0, 0, 1)]
    assert torch.stack(losses).isfinite().all()
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    orders = set()
    for image, rows in zip(images, seen[0], strict=True):
        of_adapters = image.expand(2, -1, -1, -1) if augmented_views == 1 else image
        order = [
            view
            for original, samples in zip(of_adapters, rows, strict=True)
            for row in samples
            for view in range(4)
            if torch.equal(row, of_views(original[None], torch.tensor([view]))[0])
        ]
        assert sorted(order) == [0, 1, 2, 3]
        orders.add(tuple(order))
    assert len(orders) > 1  # drawn for each image


def test_logits_are_adjusted_for_images_of_a_class_only(batch: Batch) -> None:
    images, labels = batch
    labels = labels.clone()
    labels[5] = OUTSIDE
    adjustment = torch.tensor([0.5, -1.0, 2.0])
    network = random_network()
    adjusted = AdapterObjective(
        network, AdapterTraining(samples=1), torch.ones(3), COUNTS, logit_adjustment=adjustment
    )
    plain = AdapterObjective(network, AdapterTraining(samples=1), torch.ones(3), COUNTS)
    draw = plain.draw(0, 0, 0)
    rows = Rows.of([1] * 7, 2)
    logits = network(images, rows, draw.row_draws(7)).unflatten(0, (7, 2))
    shifted = logits + adjustment
    shifted[5] = logits[5]
    targets = F.one_hot(labels.clamp(min=0), 3).float()
    targets[5] = COUNTS / COUNTS.sum()
    expected = -(targets[:, None] * shifted.log_softmax(dim=-1)).sum(dim=-1).mean(dim=1).sum()
    torch.testing.assert_close(adjusted.loss(network, images, labels, draw), expected)
    assert expected != plain.loss(network, images, labels, draw)


def test_training_without_sampling_has_the_loss_of_mode_det(batch: Batch) -> None:
    images, labels = batch
    network = random_network()
    plain = AdapterObjective(network, AdapterTraining(samples=1, sampling=False), torch.ones(3))
    outputs = predict_images(network, images, [Draw(mode="det")] * 7)
    losses = [
        -output.flat_log_probabilities[0, :, label].mean()
        for output, label in zip(outputs, labels, strict=True)
    ]
    loss = plain.loss(network, images, labels, plain.draw(4, 3, 0))
    torch.testing.assert_close(loss, torch.stack(losses).sum().float())


def test_dropout_is_a_function_of_seed_step_and_process(batch: Batch) -> None:
    network = random_network()
    dropping = AdapterObjective(
        network, AdapterTraining(samples=1, sampling=False, adapter_dropout=0.5), torch.ones(3)
    )

    def loss(seed: int, step: int, process: int) -> float:
        return dropping.loss(network, *batch, dropping.draw(seed, step, process)).item()

    first = loss(4, 3, 0)
    assert loss(4, 3, 0) == first
    assert len({first, loss(5, 3, 0), loss(4, 4, 0), loss(4, 3, 1)}) == 4


@pytest.mark.slow  # imports torch twice
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
    """The losses of all steps for each of `runs`; process 0 writes them to `out`."""
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

    def recording_step(optimisation: Optimisation, *arguments: object):
        step = take_step(optimisation, *arguments)
        losses[-1].append(step.loss)
        return step

    for number, settings in enumerate(runs):
        losses.append([])
        objective = make_objective()
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
            optimise(objective, batches, run)
    if process == 0:
        torch.save(losses, out)
    return losses


GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(5, 8, 3, generator=GENERATOR, dtype=torch.float64) * 3
LABELS = torch.tensor([0, 2, 1, 1, 0])
CLASS_WEIGHTS = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
ONES = torch.ones(3, dtype=torch.float64)


def weighted_objective(
    loss: Literal["trajectory", "mean"], weights: Tensor, outlier_weight: float = 1.0
) -> AdapterObjective:
    settings = AdapterTraining(samples=4, loss=loss)
    return AdapterObjective(random_network(), settings, weights.float(), COUNTS, outlier_weight)


def loss_of(objective: AdapterObjective, logits: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of images whose trajectories have these logits."""
    images = torch.zeros(len(labels), 3, 1, 1)
    draw = objective.draw(0, 0, 0)
    loss = objective.loss(lambda *_, **__: logits.flatten(0, 1).float(), images, labels, draw)
    return (loss / objective.weight(labels)).double()


@pytest.mark.parametrize("loss", ["trajectory", "mean"])
def test_padding_has_no_loss_and_no_weight(loss: Literal["trajectory", "mean"]) -> None:
    padded = torch.cat([LABELS, torch.tensor([IGNORED, IGNORED])])
    logits = torch.cat([LOGITS, LOGITS[:2]])
    objective = weighted_objective(loss, CLASS_WEIGHTS)
    close = {"atol": 1e-6, "rtol": 1e-6}
    torch.testing.assert_close(
        loss_of(objective, logits, padded), loss_of(objective, LOGITS, LABELS), **close
    )
    assert objective.weight(padded[5:]) == 0


@pytest.mark.parametrize(
    ("weights", "shares"), [(ONES, [0.6, 0.3, 0.1]), (CLASS_WEIGHTS, [0.4, 0.5, 0.1])]
)
def test_the_loss_of_an_outlier_is_its_cross_entropy_with_the_shares_of_the_classes(
    weights: Tensor, shares: list[float]
) -> None:
    labels = torch.tensor([0, 2, OUTSIDE, 1, OUTSIDE])
    outlier = 0.5 * weights.mean()
    per_image = torch.stack([weights[0], weights[2], outlier, weights[1], outlier])
    frequencies = torch.tensor(shares).double().expand(8, -1)
    losses = torch.stack(
        [
            F.cross_entropy(LOGITS[i], frequencies if label == OUTSIDE else label.expand(8))
            for i, label in enumerate(labels)
        ]
    )
    actual = loss_of(weighted_objective("trajectory", weights, 0.5), LOGITS, labels)
    expected = (per_image * losses).sum() / per_image.sum()
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-6)


def test_the_mean_probability_loss_is_the_cross_entropy_of_the_mean_probability() -> None:
    mean = LOGITS.softmax(-1).mean(dim=1)
    expected = -mean[range(5), LABELS].log().mean()
    actual = loss_of(weighted_objective("mean", ONES), LOGITS, LABELS)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-6)
    assert actual < loss_of(weighted_objective("trajectory", ONES), LOGITS, LABELS)  # Jensen


def objective_for(
    recipe_file: Path, counts: Sequence[int], *overrides: str, outliers: int = 0
) -> tuple[AdapterObjective, LoadedBatches]:
    """The objective and the batches for so many images of each class, which are never read."""
    recipe = read_recipe(recipe_file, AdapterRecipe, overrides)
    classes = tuple(ClassName(name=str(i), description=str(i)) for i in range(len(counts)))
    train = [LabelledImage("", b"", label) for label, n in enumerate(counts) for _ in range(n)]
    outside = OodSet("outliers", [LabelledImage("", b"", OUTSIDE)] * outliers)
    images = ImageParts("counted", classes, {"train": train})
    return objective_and_batches(random_network(), recipe, images, outside if outliers else None)


HAM10000_TRAINING_COUNTS = (879, 5364, 92, 890, 114, 411, 262)


def test_the_class_weights_of_ham10000_agree_with_the_paper(recipe_file: Path) -> None:
    weighted = ("training.class_weights='effective-number'", "training.beta=0.9991")
    weights = objective_for(recipe_file, HAM10000_TRAINING_COUNTS, *weighted)[0].class_weights
    expected = [0.0516, 0.0284, 0.3546, 0.0511, 0.2890, 0.0911, 0.1342]
    torch.testing.assert_close(weights, torch.tensor(expected), atol=5e-5, rtol=0)
    assert float(weights.sum()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("class_balance", "expected"),
    [(0.001, [9, 4, 1]), (0.5, [7, 14 / 3, 7 / 3]), (1.0, [14 / 3] * 3)],
)
def test_classes_are_drawn_in_proportion_to_a_power_of_their_size(
    recipe_file: Path, class_balance: float, expected: list[float]
) -> None:
    balance = f"training.class_balance={class_balance}"
    _, batches = objective_for(recipe_file, [9, 4, 1], balance, outliers=3)
    counts, labels = batches.expected_counts, np.repeat([0, 1, 2, OUTSIDE], [9, 4, 1, 3])
    drawn = [counts[labels == label].sum() for label in (0, 1, 2)]
    np.testing.assert_allclose(drawn, expected, rtol=0.01 if class_balance < 0.5 else 1e-7)
    assert (counts[labels == OUTSIDE] == 1).all()


@pytest.mark.parametrize("weights", [ONES, CLASS_WEIGHTS])
def test_outliers_pull_where_a_network_ends_that_cannot_tell_images_apart(weights: Tensor) -> None:
    labels = torch.repeat_interleave(torch.arange(3), COUNTS)
    frequencies = weighted_objective("trajectory", weights).outside.double()
    logits = frequencies.log().requires_grad_()
    losses = F.cross_entropy(logits.expand(len(labels), -1), labels, weight=weights)
    (gradient,) = torch.autograd.grad(losses, logits)
    torch.testing.assert_close(gradient, torch.zeros(3).double(), atol=1e-7, rtol=0)


def test_a_recipe_with_outliers_pulls_them_to_the_class_frequencies(
    recipe_file: Path, labelled: Path
) -> None:
    settings = ("data.path=set", "data.at_most={train = 30}", "training.class_balance=0.5")
    recipe = read_recipe(recipe_file, AdapterRecipe, settings)
    images = read_dataset(recipe.data, labelled)
    train = sorted(images.parts["train"], key=lambda image: image.label)[5:]  # of the first class
    counts = torch.bincount(torch.tensor([image.label for image in train]))
    assert counts[0] < counts[1]
    fewer = replace(images, parts={**images.parts, "train": train})
    objective, _ = objective_and_batches(random_network(), recipe, fewer, None)
    torch.testing.assert_close(objective.outside, counts / counts.sum())


def test_the_adjusted_loss_of_balanced_draws_is_least_at_the_probabilities_of_the_images(
    recipe_file: Path,
) -> None:
    objective, batches = objective_for(recipe_file, [9, 1, 0], "training.class_balance=1.0")
    labels, counts = np.repeat([0, 1], [9, 1]), batches.expected_counts
    adjustment = objective.logit_adjustment
    assert adjustment[2] == 0
    logits = torch.zeros(3, requires_grad=True)
    optimiser = torch.optim.LBFGS([logits], max_iter=100)

    def closure() -> Tensor:
        optimiser.zero_grad()
        log_probabilities = (logits + adjustment)[:2].log_softmax(dim=-1)
        weights = torch.from_numpy(counts)
        loss = -(weights * log_probabilities.double()[torch.from_numpy(labels)]).mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    torch.testing.assert_close(
        logits[:2].softmax(dim=-1), torch.tensor([0.9, 0.1]), atol=1e-4, rtol=0
    )


ROWS = Rows.of([2, 1], 2)
IMAGES = torch.rand(2, 3, 32, 32, generator=Generator().manual_seed(0))
DROPOUT_COEFFICIENTS = torch.rand(6, 2, 4, 4, generator=Generator().manual_seed(1))
DRAWS = RowDraws.of_coefficients(DROPOUT_COEFFICIENTS)


@pytest.fixture
def network() -> AdaptedVisionTransformer:
    return random_network()


def block(probability: float) -> DropoutBlock:
    return DropoutBlock(probability, Generator().manual_seed(2))


def test_no_dropout_is_the_block_of_prediction(network: AdaptedVisionTransformer) -> None:
    plain = network(IMAGES, ROWS, DRAWS)
    torch.testing.assert_close(network(IMAGES, ROWS, DRAWS, block=block(0.0)), plain)
    assert not torch.allclose(network(IMAGES, ROWS, DRAWS, block=block(0.5)), plain)


def test_kept_elements_are_scaled_to_the_same_mean() -> None:
    dropped = block(0.25).dropped(torch.full((200, 50), 3.0))
    assert set(dropped.unique().tolist()) == {0.0, 4.0}
    assert (dropped == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)


def test_a_projection_is_that_of_peft(network: AdaptedVisionTransformer) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(16, 16))
    config = peft.LoraConfig(r=4, lora_alpha=4, lora_dropout=0.5, target_modules=["0"])
    layer = peft.get_peft_model(base, config).base_model.model[0]
    adapters, frozen = network.blocks[0], network.backbone.encoder.layers[0].self_attention
    down, up = adapters.down[3], adapters.up[3]  # output projection
    with torch.no_grad():
        layer.base_layer.weight.copy_(frozen.out_proj.weight)
        layer.base_layer.bias.copy_(frozen.out_proj.bias)
        layer.lora_A.default.weight.copy_(down[1])
        layer.lora_B.default.weight.copy_(up[1].T)
    inputs, dropping = torch.rand(6, 5, 16), block(0.5)
    ours = dropping.projection(
        inputs, frozen.out_proj.weight, frozen.out_proj.bias, down[1:], up[1:], torch.ones(6, 4)
    )
    kept = block(0.5).dropped(torch.ones_like(inputs))
    layer.lora_dropout["default"] = Multiplied(kept)
    torch.testing.assert_close(ours, layer(inputs))


class Multiplied(nn.Module):
    """Multiplies by given factors, in place of PEFT's own draw."""

    def __init__(self, factors: torch.Tensor) -> None:
        super().__init__()
        self.factors = factors

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.factors

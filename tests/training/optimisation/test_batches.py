"""Batches of an epoch: every image once, for any number of processes."""

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.training.conftest import plain_view
from training.data.dataset import DataSettings
from training.data.datasets import read_dataset
from training.data.images import LabelledImage
from training.optimisation.batches import IGNORED, LoadedBatches, RunLength, Shard
from training.recipe.schema import AdapterTraining

WHOLE = Shard()
SETTINGS = AdapterTraining(epochs=1, batch_size=8, workers=0)


@pytest.fixture
def numbered(image_folder: Path) -> list[LabelledImage]:
    """Images whose label is their index."""
    data = read_dataset(DataSettings(kind="imagefolder", path="train"), image_folder)
    return [
        LabelledImage(image.name, image.source, index)
        for index, image in enumerate(data.parts["train"])
    ]


def loaded(
    images: list[LabelledImage],
    size: int = 4,
    seed: int = 0,
    shard: Shard = WHOLE,
    **changes: object,
) -> LoadedBatches:
    settings = SETTINGS.model_copy(update=changes)
    return LoadedBatches(images, lambda _: plain_view(size), settings, seed, shard)


def labels_of(batches: LoadedBatches, epoch: int = 0, skip: int = 0) -> list[list[int]]:
    return [labels.tolist() for _, labels in batches.epoch(epoch, skip)]


def test_every_epoch_contains_every_image_once_in_a_new_order(
    numbered: list[LabelledImage],
) -> None:
    orders = [
        list(chain(*labels_of(loaded(numbered, seed=seed), epoch)))
        for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0))
    ]
    assert all(sorted(order) == list(range(len(numbered))) for order in orders)
    assert orders[0] == orders[3]
    assert len({tuple(order) for order in orders}) == 3


def test_an_epoch_contains_each_image_as_often_as_expected(numbered: list[LabelledImage]) -> None:
    counts = np.ones(len(numbered))
    counts[:3] = 2.5, 0.25, 0.25
    batches = replace(loaded(numbered), expected_counts=counts)
    drawn = np.array(
        [
            np.bincount(list(chain(*labels_of(batches, epoch))), minlength=len(numbered))
            for epoch in range(40)
        ]
    )
    assert (drawn.sum(axis=1) == len(numbered)).all()
    assert (drawn >= np.floor(counts)).all()
    assert (drawn <= np.ceil(counts)).all()
    np.testing.assert_allclose(drawn.mean(axis=0), counts, atol=0.35)
    assert labels_of(batches, 3) == labels_of(batches, 3) != labels_of(batches, 4)


@pytest.mark.parametrize("processes", [2, 3, 16])
def test_shards_partition_every_batch_and_padding_makes_them_equal(
    numbered: list[LabelledImage], processes: int
) -> None:
    shards = [labels_of(loaded(numbered, shard=Shard(n, processes))) for n in range(processes)]
    for batch, *parts in zip(labels_of(loaded(numbered)), *shards, strict=True):
        assert len({len(part) for part in parts}) == 1
        labels = [label for part in parts for label in part if label != IGNORED]
        assert sorted(labels) == sorted(batch)


def test_worker_processes_give_the_same_batches(numbered: list[LabelledImage]) -> None:
    def epoch(workers: int) -> Tensor:
        batches = loaded(numbered[:12], size=8, workers=workers)
        return torch.cat([pixels for pixels, _ in batches.epoch(0, 0)])

    assert torch.equal(epoch(0), epoch(2))


@pytest.mark.parametrize(
    ("images", "batch_size", "epochs"),
    [(24, 8, 40), (100, 8, 24), (172, 16, 28), (400, 32, 24), (2_000, 32, 10), (50_000, 32, 10)],
)
def test_an_automatic_length_follows_from_the_number_of_images(
    images: int, batch_size: int, epochs: int
) -> None:
    length = RunLength.of(AdapterTraining(), images)
    assert (length.batch_size, length.epochs) == (batch_size, epochs)
    assert length.epochs == 40 or length.steps >= 300

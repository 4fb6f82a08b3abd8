"""Batches of several sets: repeats, labels over all sets, and two views of unlabelled images."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from training.data.images import LabelledImage
from training.fit.batches import IGNORED, Shard
from training.fit.run import Run
from training.pretraining.train import MixedBatches, PretrainingSet
from training.recipe.pretraining import PretrainingStage

STAGE = PretrainingStage(epochs=2, batch_size=8, image_size=4, workers=0)


def gray(count: int, first_level: int, side: int, first_label: int) -> list[LabelledImage]:
    """Images of one gray level each, with as many labels as images."""
    return [
        LabelledImage(
            str(level), torch.full((3, side, side), level, dtype=torch.uint8), first_label + number
        )
        for number, level in enumerate(range(first_level, first_level + count))
    ]


SETS = [
    PretrainingSet(gray(17, 0, 6, 0), "natural"),
    PretrainingSet(gray(10, 17, 4, 17), "natural"),
]


def batches(repeats: Sequence[int] = (), sets: Sequence[PretrainingSet] = SETS) -> MixedBatches:
    stage = STAGE.model_copy(update={"repeats": tuple(repeats)})
    run = Run(Accelerator(cpu=True), seed=0, recipe=stage, state=Path("none"))
    return MixedBatches(sets, stage, run)


def levels(pixels: Tensor) -> list[int]:
    return (255 * pixels.mean(dim=(1, 2, 3))).round().int().tolist()


def test_an_epoch_contains_every_image_of_every_set_once_with_its_label() -> None:
    orders = []
    for epoch in (0, 1):
        parts = list(batches().epoch(epoch, 0))
        assert [len(labels) for _, labels in parts] == [8, 8, 8, 3]
        assert all(levels(pixels) == labels.tolist() for pixels, labels in parts)
        orders.append([label for _, labels in parts for label in labels.tolist()])
        assert sorted(orders[-1]) == list(range(27))
    assert orders[0] != orders[1]


@pytest.mark.parametrize("repeats", [(0, 3), (2, 1)])
def test_an_epoch_repeats_the_images_of_a_set_as_often_as_it_says(repeats: tuple[int, int]) -> None:
    mixed = batches(repeats)
    seen = Counter(label for _, labels in mixed.epoch(0, 0) for label in labels.tolist())
    assert seen == {label: repeats[label >= 17] for label in range(27) if repeats[label >= 17]}
    assert mixed.images == seen.total()


def test_every_unlabelled_image_has_two_different_views_in_a_batch() -> None:
    noise = [
        LabelledImage(str(i), torch.randint(0, 256, (3, 12, 12), dtype=torch.uint8), 17 + i)
        for i in range(9)
    ]
    mixed = batches(sets=[SETS[0], PretrainingSet(noise, "cameras", 2)])
    assert mixed.images == 17 + 9
    seen = []
    for pixels, labels in mixed.epoch(0, 0):
        for label in labels[labels >= 17].unique():
            first, second = pixels[labels == label]
            assert not torch.equal(first, second)
            seen.append(int(label))
    assert sorted(seen) == list(range(17, 26))


def test_processes_partition_a_batch() -> None:
    epochs = []
    for process in (0, 1):
        ours = batches()
        ours.run = SimpleNamespace(seed=0, shard=Shard(process, 2))
        epochs.append([labels for _, labels in ours.epoch(0, 0)])
    seen = torch.cat([labels for epoch in epochs for labels in epoch])
    assert sorted(seen[seen != IGNORED].tolist()) == list(range(27))
    assert all(len(one) == len(other) for one, other in zip(*epochs, strict=True))

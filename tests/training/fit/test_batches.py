"""Every image once an epoch, whatever the processes."""

from itertools import chain
from pathlib import Path

import pytest
import torch
from torch import Tensor

from training.data.augmentation import evaluation_view
from training.data.datasets import read_dataset
from training.data.labelled_images import LabelledImage
from training.fit.batches import IGNORED, Share, epoch_batches
from training.recipe.schema import DataSettings, OptimisationSettings

SETTINGS = OptimisationSettings(epochs=1, batch_size=8, workers=0)


@pytest.fixture
def numbered(image_folder: Path) -> list[LabelledImage]:
    """Images whose label is their number."""
    data = read_dataset(DataSettings(kind="imagefolder", path="train"), image_folder)
    return [
        LabelledImage(each.name, each.source, index)
        for index, each in enumerate(data.parts["train"])
    ]


def labels_of(
    images: list[LabelledImage],
    seed: int = 0,
    epoch: int = 0,
    skip: int = 0,
    share: Share | None = None,
    **changes: object,
) -> list[list[int]]:
    settings = SETTINGS.model_copy(update=changes)
    batches = epoch_batches(
        images, evaluation_view(4), settings, seed, epoch, skip, share or Share()
    )
    return [labels.tolist() for _, labels in batches]


def test_every_epoch_has_every_image_once_in_an_order_of_its_own(
    numbered: list[LabelledImage],
) -> None:
    orders = [list(chain(*labels_of(numbered, *key))) for key in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert all(sorted(order) == list(range(len(numbered))) for order in orders)
    assert orders[0] == orders[3]
    assert len({tuple(order) for order in orders}) == 3
    assert list(chain(*labels_of(numbered, shuffle=False))) == list(range(len(numbered)))


def test_the_last_incomplete_batch_is_kept(numbered: list[LabelledImage]) -> None:
    sizes = [len(batch) for batch in labels_of(numbered)]
    assert sizes == [8] * (len(numbered) // 8) + [len(numbered) % 8]


def test_skipped_batches_are_the_first_ones(numbered: list[LabelledImage]) -> None:
    assert labels_of(numbered, skip=2) == labels_of(numbered)[2:]


@pytest.mark.parametrize("processes", [2, 3, 16])
def test_processes_share_each_batch_and_padding_fills_up(
    numbered: list[LabelledImage], processes: int
) -> None:
    shares = [labels_of(numbered, share=Share(each, processes)) for each in range(processes)]
    for batch, *parts in zip(labels_of(numbered), *shares, strict=True):
        assert len({len(part) for part in parts}) == 1
        assert sorted(label for part in parts for label in part if label != IGNORED) == sorted(
            batch
        )


def test_worker_processes_change_nothing(numbered: list[LabelledImage]) -> None:
    def epoch(workers: int) -> Tensor:
        settings = SETTINGS.model_copy(update={"workers": workers})
        batches = epoch_batches(numbered[:12], evaluation_view(8), settings, 0, 0)
        return torch.cat([pixels for pixels, _ in batches])

    assert torch.equal(epoch(0), epoch(2))

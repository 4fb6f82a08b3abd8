"""An epoch's batches: their order, each process's share of them, and the loader."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from training.data.augmentation import Transform
from training.data.datasets import LabelledImage, Pictures
from training.recipe.schema import AdamWSettings, OptimisationSettings

IGNORED = -100
"""The label of padding; torch's losses leave it out."""


@dataclass(frozen=True)
class Share:
    """Which of `processes` a process is; each gets every `processes`-th image of a batch."""

    process: int = 0
    processes: int = 1


class Batches(Protocol):
    """What a run trains on: `images` of them an epoch."""

    @property
    def images(self) -> int: ...

    def of_epoch(self, epoch: int, skip: int) -> Iterable[tuple[Tensor, Tensor]]:
        """Pixels (n, 3, size, size) and labels, (n, ...), of its batches from the `skip`-th on;
        the same each time.
        """


@dataclass(frozen=True)
class LoadedBatches:
    """Batches of images that are decoded and transformed one by one.

    view: the transform of each epoch's images.
    """

    pictures: Sequence[LabelledImage]
    view: Callable[[int], Transform]
    settings: OptimisationSettings
    seed: int
    share: Share

    @property
    def images(self) -> int:
        """How many images an epoch has."""
        return len(self.pictures)

    def of_epoch(self, epoch: int, skip: int) -> Iterable[tuple[Tensor, Tensor]]:
        """An epoch's batches from the `skip`-th on."""
        return epoch_batches(
            self.pictures, self.view(epoch), self.settings, self.seed, epoch, skip, self.share
        )


class _Padded(Dataset[tuple[Tensor, int]]):
    """Pictures in which the index -1 is padding: some picture with the label IGNORED."""

    def __init__(self, pictures: Pictures) -> None:
        self.pictures = pictures

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels, label = self.pictures[max(index, 0)]
        return pixels, IGNORED if index < 0 else label


@dataclass(frozen=True)
class RunLength:
    """How long a run is: its images, the images of a batch, and its epochs."""

    images: int
    batch_size: int
    epochs: int

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""
        return batches_of_epoch(self.images, self.batch_size)

    @property
    def steps(self) -> int:
        """Steps of all epochs."""
        return self.epochs * self.per_epoch

    def epoch_of(self, steps: int) -> int:
        """The epoch, counted from 1, of the last one of so many steps."""
        return (steps - 1) // self.per_epoch + 1

    def images_after(self, steps: int) -> int:
        """Images that so many steps saw; the last batch of an epoch may have fewer."""
        epochs, rest = divmod(steps, self.per_epoch)
        return epochs * self.images + rest * self.batch_size


def batches_of_epoch(images: int, batch_size: int) -> int:
    """Batches of an epoch, the last incomplete one among them."""
    return -(-images // batch_size)


def epoch_batches(
    images: Sequence[LabelledImage],
    transform: Transform,
    settings: OptimisationSettings,
    seed: int,
    epoch: int,
    skip: int = 0,
    share: Share = Share(),
) -> DataLoader[tuple[Tensor, int]]:
    """One epoch's batches from the `skip`-th on; their order is a function of seed and epoch.

    `settings.batch_size` images are a batch of all processes together; each process loads its
    share, padded to the same size in all of them.
    """
    indices = list(shares(len(images), settings, seed, epoch, share))[skip:]
    return DataLoader(
        _Padded(Pictures(images, transform)),
        batch_sampler=indices,
        num_workers=settings.workers,
    )


def shares(
    images: int, settings: AdamWSettings, seed: int, epoch: int, share: Share
) -> Iterator[list[int]]:
    """Which images a process has in each batch of an epoch; -1 is padding."""
    order = np.arange(images)
    if settings.shuffle:
        order = np.random.default_rng((seed, epoch)).permutation(images)
    for start in range(0, images, settings.batch_size):
        batch = order[start : start + settings.batch_size].tolist()
        batch += [-1] * (-len(batch) % share.processes)
        yield batch[share.process :: share.processes]

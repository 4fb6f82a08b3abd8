"""An epoch's batches: their order, each process's share of them, and the loader."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from training.augment import Transform
from training.datasets import LabelledImage, Pictures
from training.recipe import OptimisationSettings

IGNORED = -100
"""The label of padding; torch's losses leave it out."""


@dataclass(frozen=True)
class Share:
    """Which of `processes` a process is; each gets every `processes`-th image of a batch."""

    process: int = 0
    processes: int = 1


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
    indices = list(_shares(len(images), settings, seed, epoch, share))[skip:]
    return DataLoader(
        _Padded(Pictures(images, transform)),
        batch_sampler=indices,
        num_workers=settings.workers,
    )


def _shares(
    images: int, settings: OptimisationSettings, seed: int, epoch: int, share: Share
) -> Iterator[list[int]]:
    order = np.arange(images)
    if settings.shuffle:
        order = np.random.default_rng((seed, epoch)).permutation(images)
    for start in range(0, images, settings.batch_size):
        batch = order[start : start + settings.batch_size].tolist()
        batch += [-1] * (-len(batch) % share.processes)
        yield batch[share.process :: share.processes]

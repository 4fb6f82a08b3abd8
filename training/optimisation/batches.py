"""Batches of an epoch: their order, the shard of each process, and the loader."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from training.data.augmentation import Transform
from training.data.images import LabelledImage, load
from training.recipe.schema import OptimisationSettings

_AnySettings = TypeVar("_AnySettings", bound=OptimisationSettings)

IGNORED = -100
"""Label of padding; the losses give it no weight."""


@dataclass(frozen=True)
class Shard:
    """The part of every batch that one process gets.

    Attributes:
        index: Of its first image.
        count: Of processes; it gets every `count`-th image after the first.
    """

    index: int = 0
    count: int = 1


@dataclass(frozen=True)
class RunLength:
    images: int
    batch_size: int
    epochs: int

    @classmethod
    def of(cls, settings: OptimisationSettings, images: int) -> Self:
        """The length of a run on `images` images; `auto` follows from their number.

        An automatic batch is a power of two from 8 to 32 that makes 10 steps per epoch or more. An
        automatic length is at least 10 epochs; up to 40 if fewer make less than 300 steps.
        """
        size = settings.batch_size
        if isinstance(size, str):
            size = 8
            while size < 32 and 10 * 2 * size <= images:
                size *= 2
        if not isinstance(settings.epochs, str):
            return cls(images, size, settings.epochs)
        steps_per_epoch = max(1, -(-images // size))
        epochs = min(40, max(10, -(-300 // steps_per_epoch)))
        return cls(images, size, epochs)

    def settled(self, settings: _AnySettings) -> _AnySettings:
        return settings.model_copy(update={"epochs": self.epochs, "batch_size": self.batch_size})

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.images // self.batch_size)

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def epoch_of(self, steps: int) -> int:
        """The epoch, counted from 1, that contains the last of `steps` steps."""
        return (steps - 1) // self.steps_per_epoch + 1

    def images_after(self, steps: int) -> int:
        epochs, rest = divmod(steps, self.steps_per_epoch)
        return epochs * self.images + rest * self.batch_size


@dataclass(frozen=True)
class LoadedBatches:
    """The training data of a run: batches of images that are decoded and transformed one by one.

    Attributes:
        view: Returns the transform of an epoch.
        expected_counts: (images,), how often an epoch contains each image on average, with a sum of
            `images`; None for once.
        shown: For each image of an epoch, the indices in `labelled_images` that a batch shows of
            it; None for the image alone.
    """

    labelled_images: Sequence[LabelledImage]
    view: Callable[[int], Transform]
    settings: OptimisationSettings
    seed: int
    shard: Shard = Shard()
    expected_counts: NDArray[np.float64] | None = None
    shown: Sequence[range] | None = None

    @property
    def length(self) -> RunLength:
        images = self.labelled_images if self.shown is None else self.shown
        return RunLength.of(self.settings, len(images))

    def epoch(self, epoch: int, skip: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the epoch's batches, beginning with batch `skip`: pixels and labels (n, ...).

        The order depends on seed and epoch only. A batch has the images of a step over all
        processes; each process loads its shard, padded to the same size in all of them.
        """
        dataset = _ImageDataset(self.labelled_images, self.view(epoch))
        shards = list(self._shards(epoch))[skip:]
        if (shown := self.shown) is not None:
            shards = [
                [index for image in shard for index in (shown[image] if image >= 0 else (-1,))]
                for shard in shards
            ]
        return load(dataset, self.settings.workers, batch_sampler=shards)

    def _shards(self, epoch: int) -> Iterator[list[int]]:
        """Yields the image indices of this process for every batch of an epoch; -1 is padding."""
        generator = np.random.default_rng((self.seed, epoch))
        length, shard = self.length, self.shard
        order = generator.permutation(length.images)
        if self.expected_counts is not None:
            order = order[_systematic_sample(self.expected_counts[order], generator)]
            order = generator.permutation(order)
        for start in range(0, length.images, length.batch_size):
            batch = order[start : start + length.batch_size].tolist()
            batch += [-1] * (-len(batch) % shard.count)
            yield batch[shard.index :: shard.count]


class _ImageDataset(Dataset[tuple[Tensor, int]]):
    """Transformed images and their labels; index -1 is padding, with the label IGNORED."""

    def __init__(self, images: Sequence[LabelledImage], transform: Transform) -> None:
        self.images = images
        self.transform = transform

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[max(index, 0)]
        pixels = self.transform(max(index, 0), image.pixels())
        return pixels, IGNORED if index < 0 else image.label


def _systematic_sample(
    expected_counts: NDArray[np.float64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """Sorted indices (n,); index i occurs floor(e) or ceil(e) times, e = expected_counts[i].

    Systematic sampling (Madow, 1949): the indices under equally spaced points of the cumulative
    sum, with a random start. The n expected counts have a sum of n.
    """
    count = len(expected_counts)
    points = np.arange(count) + generator.random()
    cumulated = np.cumsum(expected_counts) * (count / expected_counts.sum())
    return np.searchsorted(cumulated, points, side="right").clip(max=count - 1)

"""Images x adapters x samples as rows of a batch.

A trajectory is one (adapter, sample) pair; a row is one (image, trajectory) pair. The rows of an
image are consecutive, adapter by adapter. Images of a batch may have different numbers of samples.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The image and the adapter of each row of a batch.

    image: (rows,) int64, index of the image in the batch, non-decreasing.
    adapter: (rows,) int64, index of the adapter whose head the row uses.
    counts: number of rows of each image, in order.
    """

    image: Tensor
    adapter: Tensor
    counts: tuple[int, ...]

    @classmethod
    def of(cls, samples: Sequence[int], adapters: int) -> "Rows":
        """Returns the rows of images with `samples[i]` samples of every adapter."""
        counts = tuple(adapters * count for count in samples)
        image = torch.repeat_interleave(torch.tensor(counts))
        adapter = torch.cat([torch.arange(adapters).repeat_interleave(count) for count in samples])
        return cls(image, adapter, counts)

    def with_own_images(self, adapters: int) -> "Rows":
        """Returns the same rows for a batch with an image for each adapter of every image.

        Row (image i, adapter a) uses image i * adapters + a.
        """
        image = self.image * adapters + self.adapter
        counts = torch.bincount(image, minlength=len(self.counts) * adapters)
        return Rows(image, self.adapter, tuple(counts.tolist()))

    def prefixes(self, adapters: int) -> "Prefixes":
        """Returns a row for each image and adapter, which its trajectories share."""
        key = self.image * adapters + self.adapter
        _, of_row, counts = key.unique_consecutive(return_inverse=True, return_counts=True)
        first = counts.cumsum(0) - counts
        return Prefixes(Rows(self.image[first], self.adapter[first], ()), first, of_row)

    def __len__(self) -> int:
        return len(self.image)

    def to(self, device: torch.device) -> "Rows":
        """Returns the same rows with their indices on `device`."""
        return Rows(self.image.to(device), self.adapter.to(device), self.counts)

    def split(self, max_rows: int) -> Iterator["RowPart"]:
        """Yields parts of whole images with at most `max_rows` rows, or one image with more."""
        first = 0
        while first < len(self.counts):
            part = self.part(first, max_rows)
            yield part
            first = part.images.stop

    def part(self, first: int, max_rows: int) -> "RowPart":
        """Returns whole images from the image `first` on, at least one.

        More than one have at most `max_rows` rows together.
        """
        start = sum(self.counts[:first])
        last, stop = first + 1, start + self.counts[first]
        while last < len(self.counts) and stop + self.counts[last] - start <= max_rows:
            stop += self.counts[last]
            last += 1
        rows = slice(start, stop)
        renumbered = Rows(self.image[rows] - first, self.adapter[rows], self.counts[first:last])
        return RowPart(slice(first, last), rows, renumbered)

    def by_image(self, values: Tensor) -> tuple[Tensor, ...]:
        """Splits (rows, ...) into one tensor (trajectories, ...) per image."""
        parts: tuple[Tensor, ...] = values.split(self.counts)
        return parts


@dataclass(frozen=True)
class RowPart:
    """Consecutive images of a batch with all their rows.

    images, rows: their positions in the batch. renumbered: the same rows, with image indices that
    start at the first image of the part.
    """

    images: slice
    rows: slice
    renumbered: Rows


@dataclass(frozen=True)
class Prefixes:
    """The computation that the trajectories of an image and adapter share.

    rows: one for each image and adapter. first: (prefixes,), position of the first row that each is
    shared by. of_row: (rows,), index of the prefix of every row.
    """

    rows: Rows
    first: Tensor
    of_row: Tensor

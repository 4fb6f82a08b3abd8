"""Images x adapters x samples, flattened to rows and back.

A trajectory is one (adapter, sample) pair; a row is one (image, trajectory). An image's rows lie
together, adapter by adapter. Images of one batch may have different numbers of samples.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Which image and which adapter each row of a batch belongs to.

    image: (rows,) int64, index into the batch's images, non-decreasing.
    adapter: (rows,) int64, index of the adapter whose head the row uses.
    counts: rows of each image, in order.
    """

    image: Tensor
    adapter: Tensor
    counts: tuple[int, ...]

    @classmethod
    def of(cls, samples: Sequence[int], adapters: int) -> "Rows":
        """The rows of images that take `samples[i]` samples of every adapter."""
        counts = tuple(adapters * count for count in samples)
        image = torch.repeat_interleave(torch.tensor(counts))
        adapter = torch.cat([torch.arange(adapters).repeat_interleave(count) for count in samples])
        return cls(image, adapter, counts)

    def __len__(self) -> int:
        return len(self.image)

    def to(self, device: torch.device) -> "Rows":
        """The same rows with their indices on `device`."""
        return Rows(self.image.to(device), self.adapter.to(device), self.counts)

    def parts(self, most: int) -> Iterator["RowPart"]:
        """The rows in parts of whole images, each of `most` rows at most or of a single image."""
        first_image = first_row = 0
        while first_image < len(self.counts):
            image, row = first_image + 1, first_row + self.counts[first_image]
            while image < len(self.counts) and row + self.counts[image] - first_row <= most:
                row += self.counts[image]
                image += 1
            own = slice(first_row, row)
            rows = Rows(
                self.image[own] - first_image, self.adapter[own], self.counts[first_image:image]
            )
            yield RowPart(slice(first_image, image), own, rows)
            first_image, first_row = image, row

    def by_image(self, values: Tensor) -> tuple[Tensor, ...]:
        """Splits (rows, ...) into one (trajectories, ...) tensor for each image."""
        parts: tuple[Tensor, ...] = values.split(self.counts)
        return parts


@dataclass(frozen=True)
class RowPart:
    """Some images of a batch with all their rows.

    images, rows: where they lie in the batch. own: the same rows, counted from the part's first
    image.
    """

    images: slice
    rows: slice
    own: Rows

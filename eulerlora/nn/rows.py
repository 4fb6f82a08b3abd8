"""Images x adapters x samples as rows of a batch, and the views of an image that rows see.

A trajectory is one (adapter, sample) pair; a row is one (image, trajectory) pair. The rows of an
image are consecutive, adapter by adapter. Images of a batch may have different numbers of samples.

Views are the symmetries of the square. A view is a number of three bits: 4 exchanges rows and
columns, then 1 flips the columns and 2 the rows. So 0 is the image, 1 its mirror image, 2 the
vertical flip, 3 the half turn, and 4 to 7 are the transposed ones: 0 to 7 is the dihedral group.
With `views=n`, the views are 0 to n - 1.

If the preprocessing has a canvas, a view also shows one region of the image (`VIEW_REGIONS`): eight
views are the whole image and its centre, twice each, and its corners. View 0 is the whole image in
either case.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from eulerlora.nn.device import upload
from eulerlora.settings import Draw

__all__ = [
    "VIEW_REGIONS",
    "DistinctRows",
    "RowPart",
    "Rows",
    "ViewedRows",
    "balanced_views",
    "of_views",
    "padded",
    "view_order",
]


@dataclass(frozen=True)
class Rows:
    """The image and the adapter of each row of a batch.

    Attributes:
        image: (rows,) int64, index of the image in the batch, non-decreasing.
        adapter: (rows,) int64, index of the adapter whose head the row uses.
        counts: Number of rows of each image, in order; empty for rows that are never split:
            distinct rows, those of a compiled pass, and those of a divided one.
        positions: (groups, rows of each) int64, every row once, in groups of rows of one adapter:
            one group for each adapter if all have equally many rows, and otherwise as few groups of
            equal size as possible. A pass computes the rows in this order.
    """

    image: Tensor
    adapter: Tensor
    counts: tuple[int, ...]
    positions: Tensor

    @classmethod
    def of(cls, samples: Sequence[int], adapters: int) -> "Rows":
        """Returns the rows of images with `samples[i]` samples of every adapter."""
        counts = tuple(adapters * count for count in samples)
        image = torch.repeat_interleave(torch.tensor(counts))
        adapter = torch.cat([torch.arange(adapters).repeat_interleave(count) for count in samples])
        return cls.grouped(image, adapter, counts)

    @classmethod
    def grouped(cls, image: Tensor, adapter: Tensor, counts: tuple[int, ...] = ()) -> "Rows":
        """Returns rows with their positions; a device has to wait."""
        return cls(image, adapter, counts, _positions(adapter))

    def with_own_images(self, adapters: int) -> "Rows":
        """Returns the same rows for a batch with an image for each adapter of every image.

        Row (image i, adapter a) uses image i * adapters + a.
        """
        return self._of_images(self.image * adapters + self.adapter)

    def with_views(self, images: Tensor, views: Tensor) -> "ViewedRows":
        """Returns the same rows, of which each sees a view of its image.

        Args:
            images: (n, 3, size, size), or (n, regions, 3, size, size) with the regions of each.
            views: (rows,) int64, on the device of the rows. Consecutive rows with equal image and
                view share an image of the new batch.
        """
        (image, view), of_row = torch.stack([self.image, views]).unique_consecutive(
            return_inverse=True, dim=1
        )
        image, view = upload(image, images.device), upload(view, images.device)
        of_region = images[image]
        if images.ndim == 5:
            of_region = images[image, upload(torch.tensor(VIEW_REGIONS), images.device)[view]]
        seen = of_views(of_region, view)
        return ViewedRows(seen, self._of_images(of_row))

    def _of_images(self, image: Tensor) -> "Rows":
        """Returns the same rows for a batch of other images, all of which have rows."""
        counts = tuple(torch.bincount(image).tolist())
        return Rows(image, self.adapter, counts, self.positions)

    def distinct(self, by_adapter: bool) -> "DistinctRows":
        """Returns a row for each image and adapter, or for each image, which its rows share."""
        keys = torch.stack([self.image, self.adapter]) if by_adapter else self.image[None]
        _, of_row, counts = keys.unique_consecutive(return_inverse=True, return_counts=True, dim=1)
        first = counts.cumsum(0) - counts
        rows = Rows.grouped(self.image[first], self.adapter[first])
        return DistinctRows(rows, first, of_row)

    def padded(self, groups: int, size: int) -> "Rows":
        """Appends rows of image 0 up to `groups` groups of `size` rows; without counts."""
        old_groups, old_size = self.positions.shape
        appended = torch.arange(len(self), groups * size, device=self.image.device)
        in_groups = old_groups * (size - old_size)
        positions = torch.cat(
            [self.positions, appended[:in_groups].view(old_groups, size - old_size)], dim=1
        )
        positions = torch.cat([positions, appended[in_groups:].view(-1, size)])
        image, adapter = (padded(values, groups * size) for values in (self.image, self.adapter))
        return Rows(image, adapter, (), positions)

    def __len__(self) -> int:
        return len(self.image)

    def to(self, device: torch.device) -> "Rows":
        """Returns the same rows with their indices on `device`."""
        image, adapter, positions = (
            upload(values, device) for values in (self.image, self.adapter, self.positions)
        )
        return Rows(image, adapter, self.counts, positions)

    def split(self, max_rows: int) -> Iterator["RowPart"]:
        """Yields parts of whole images with at most `max_rows` rows, or one image with more."""
        first = start = 0
        adapter = self.adapter.cpu()
        while first < len(self.counts):
            last, stop = first + 1, start + self.counts[first]
            while last < len(self.counts) and stop + self.counts[last] - start <= max_rows:
                stop += self.counts[last]
                last += 1
            counts = self.counts[first:last]
            yield self._part(slice(first, last), slice(start, stop), adapter, counts)
            first, start = last, stop

    def divided(self, parts: int) -> Iterator["RowPart"]:
        """Yields at most `parts` parts of nearly equal size, which may divide images."""
        size = math.ceil(len(self) / parts)
        image = self.image.tolist()
        for start in range(0, len(self), size):
            rows = slice(start, min(start + size, len(self)))
            images = slice(image[rows.start], image[rows.stop - 1] + 1)
            yield self._part(images, rows, self.adapter)

    def _part(
        self, images: slice, rows: slice, adapter: Tensor, counts: tuple[int, ...] = ()
    ) -> "RowPart":
        """Of consecutive rows; `adapter` is that of all rows, on the CPU."""
        positions = upload(_positions(adapter[rows]), self.adapter.device)
        renumbered = Rows(self.image[rows] - images.start, self.adapter[rows], counts, positions)
        return RowPart(images, rows, renumbered)


def padded(values: Tensor, count: int) -> Tensor:
    """(count, ...), contiguous: values (n, ...) followed by zeros."""
    return F.pad(values, [0, 0] * (values.ndim - 1) + [0, count - len(values)]).contiguous()


def _positions(adapter: Tensor) -> Tensor:
    """`Rows.positions` of rows with these adapters, (rows,)."""
    size = math.gcd(*adapter.bincount().tolist())
    return adapter.argsort(stable=True).view(-1, size)


@dataclass(frozen=True)
class ViewedRows:
    """Views of images, and the rows that see them.

    Attributes:
        images: (n, 3, size, size).
    """

    images: Tensor
    rows: Rows


@dataclass(frozen=True)
class RowPart:
    """Consecutive rows of a batch, and the images that they use.

    Attributes:
        images: Their positions in the batch.
        rows: Their positions in the batch.
        renumbered: The same rows, with image indices that start at the first image of the part.
    """

    images: slice
    rows: slice
    renumbered: Rows


@dataclass(frozen=True)
class DistinctRows:
    """Rows of which each stands for several consecutive rows of a batch.

    Attributes:
        first: (distinct rows,), position of the first row that each stands for.
        of_row: (all rows,), index of the distinct row of every row.
    """

    rows: Rows
    first: Tensor
    of_row: Tensor


VIEW_REGIONS = (0, 1, 0, 1, 2, 3, 4, 5)
"""The region of each view: 0 is the whole image, 1 its centre, the others its corners."""

_VIEW_SEED = 1_013_904_223
"""Added to the seed of a draw, so that the order of views is independent of its masks."""


def of_views(images: Tensor, views: Tensor) -> Tensor:
    """Returns each image as its view shows it, of the same shape.

    Args:
        images: (n, channels, size, size).
        views: (n,) int64, on the device of the images.
    """

    def where(bit: int, changed: Tensor, images: Tensor) -> Tensor:
        return torch.where((views & bit != 0).view(-1, 1, 1, 1), changed, images)

    images = where(4, images.mT, images)
    images = where(1, images.flip(-1), images)
    return where(2, images.flip(-2), images)


def view_order(draw: Draw, adapters: int) -> Tensor:
    """Returns the view of every sample that is run, (adapters, draw.count) int64.

    In mode det, every adapter sees each view once, in order; in mode stoch as `balanced_views`.
    """
    if draw.mode == "det":
        return torch.arange(draw.views).expand(adapters, -1)
    generator = Generator().manual_seed((draw.seed + _VIEW_SEED) % 2**32)
    return balanced_views(draw.samples, draw.views, adapters, generator)[:, draw.first :]


def balanced_views(samples: int, views: int, adapters: int, generator: Generator) -> Tensor:
    """Returns the view of every sample, (adapters, samples) int64.

    The samples of an adapter come in blocks of `views`. A block has a random permutation of all
    views, in which the adapters start at evenly spaced positions: two adapters with half as many
    samples as views see every view once. The first samples do not depend on how many there are.
    """
    blocks = [torch.randperm(views, generator=generator) for _ in range(math.ceil(samples / views))]
    starts = torch.arange(adapters) * views // adapters
    positions = (starts.unsqueeze(1) + torch.arange(views)) % views  # (adapters, views)
    order = torch.stack(blocks)[:, positions]  # (blocks, adapters, views)
    return order.transpose(0, 1).flatten(1)[:, :samples]

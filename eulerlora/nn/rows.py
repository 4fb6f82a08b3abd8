"""Images x adapters x samples as rows of a batch, and the random input of rows.

A trajectory is one (adapter, sample) pair; a row is one (image, trajectory) pair. The rows of an
image are consecutive, adapter by adapter. Images of a batch may have different numbers of samples.

A network is a deterministic function of images, rows and draws: named tensors that a method draws
and its network reads. Draws are on the CPU, come from one generator per image, and have no trained
values: means and scales belong to the network.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from eulerlora.sampling.views import of_views


@dataclass(frozen=True)
class Rows:
    """The image and the adapter of each row of a batch.

    image: (rows,) int64, index of the image in the batch, non-decreasing.
    adapter: (rows,) int64, index of the adapter whose head the row uses.
    counts: number of rows of each image, in order; empty for distinct rows and those of compiled
    passes, which are not split.
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
        return self._of_images(self.image * adapters + self.adapter)

    def with_views(self, images: Tensor, views: Tensor) -> "ViewedRows":
        """Returns the same rows, of which each sees a view of its image.

        images: (n, 3, size, size). views: (rows,) int64, on the device of the rows. Consecutive
        rows with equal image and view share an image of the new batch.
        """
        (image, view), of_row = torch.stack([self.image, views]).unique_consecutive(
            return_inverse=True, dim=1
        )
        seen = of_views(images[image], view.to(images.device))
        return ViewedRows(seen, self._of_images(of_row))

    def _of_images(self, image: Tensor) -> "Rows":
        """Returns the same rows for a batch of other images, all of which have rows."""
        return Rows(image, self.adapter, tuple(torch.bincount(image).tolist()))

    def distinct(self, by_adapter: bool = True) -> "DistinctRows":
        """Returns a row for each image and adapter, or for each image, which its rows share."""
        keys = torch.stack([self.image, self.adapter]) if by_adapter else self.image[None]
        _, of_row, counts = keys.unique_consecutive(return_inverse=True, return_counts=True, dim=1)
        first = counts.cumsum(0) - counts
        return DistinctRows(Rows(self.image[first], self.adapter[first], ()), first, of_row)

    def __len__(self) -> int:
        return len(self.image)

    def to(self, device: torch.device) -> "Rows":
        """Returns the same rows with their indices on `device`."""
        return Rows(self.image.to(device), self.adapter.to(device), self.counts)

    def split(self, max_rows: int) -> Iterator["RowPart"]:
        """Yields parts of whole images with at most `max_rows` rows, or one image with more."""
        first = start = 0
        while first < len(self.counts):
            last, stop = first + 1, start + self.counts[first]
            while last < len(self.counts) and stop + self.counts[last] - start <= max_rows:
                stop += self.counts[last]
                last += 1
            rows = slice(start, stop)
            renumbered = Rows(self.image[rows] - first, self.adapter[rows], self.counts[first:last])
            yield RowPart(slice(first, last), rows, renumbered)
            first, start = last, stop


@dataclass(frozen=True)
class ViewedRows:
    """Views of images, (n, 3, size, size), and the rows that see them."""

    images: Tensor
    rows: Rows


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
class DistinctRows:
    """Rows of which each stands for several consecutive rows of a batch.

    first: (distinct rows,), position of the first row that each stands for. of_row: (all rows,),
    index of the distinct row of every row.
    """

    rows: Rows
    first: Tensor
    of_row: Tensor


COEFFICIENTS = "coefficients"
"""Name of the coefficients of the stacked directions, (rows, blocks, 4, adapters * rank)."""


@dataclass(frozen=True)
class RowDraws:
    """What a method drew for rows.

    blocks: by name, (rows, blocks, ...). head: by name, (rows, ...). Zeros mean that a row does not
    deviate from mode det, except in `COEFFICIENTS`. shared_blocks: in this number of first blocks,
    the rows of an image and adapter have equal draws, so that one row is computed for all of them.
    """

    blocks: Mapping[str, Tensor] = field(default_factory=dict)
    head: Mapping[str, Tensor] = field(default_factory=dict)
    shared_blocks: int = 0

    @classmethod
    def of_coefficients(cls, coefficients: Tensor) -> "RowDraws":
        """Returns draws of coefficients alone. coefficients: (rows, blocks, 4, ranks)."""
        return cls({COEFFICIENTS: coefficients})

    @classmethod
    def cat(cls, parts: Sequence["RowDraws"], counts: Sequence[int]) -> "RowDraws":
        """Returns the draws of all rows; a name that a part lacks is zero on its rows.

        counts: number of rows of each part.
        """
        return cls(
            _joined([part.blocks for part in parts], counts),
            _joined([part.head for part in parts], counts),
            min((part.shared_blocks for part in parts), default=0),
        )

    @property
    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the draws of blocks and of the head."""
        return tuple(self.blocks), tuple(self.head)

    def block(self, index: int) -> dict[str, Tensor]:
        """Returns the draws of one block by name, (rows, ...)."""
        return {name: values[:, index] for name, values in self.blocks.items()}

    def shared_below(self, block: int, det: "RowDraws") -> "RowDraws":
        """Returns these draws with those of mode det in the blocks below `block`.

        det: one row for each adapter; these have as many rows for each adapter, adapter by adapter.
        """
        blocks = dict(self.blocks)
        for name, values in self.blocks.items():
            shared = det.blocks.get(name, values.new_zeros(1, *values.shape[1:]))[:, :block]
            rows = shared.repeat_interleave(len(values) // len(shared), dim=0)
            blocks[name] = torch.cat([rows, values[:, block:]], dim=1)
        return RowDraws(blocks, self.head, block)

    def to(self, images: Tensor) -> "RowDraws":
        """Returns the same draws with the device and type of the images."""
        return self._mapped(lambda values: values.to(images))

    def rows(self, rows: slice | Tensor) -> "RowDraws":
        """Returns the draws of some rows. rows: their positions."""
        return self._mapped(lambda values: values[rows])

    def repeated(self, count: int) -> "RowDraws":
        """Returns the draws of `count` images that share these."""
        return self._mapped(lambda values: values.repeat(count, *[1] * (values.ndim - 1)))

    def padded(self, count: int) -> "RowDraws":
        """Returns the draws of `count` rows: these, followed by zeros; no blocks are shared."""
        return replace(self._mapped(lambda values: padded(values, count)), shared_blocks=0)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "RowDraws":
        return RowDraws(
            {name: change(values) for name, values in self.blocks.items()},
            {name: change(values) for name, values in self.head.items()},
            self.shared_blocks,
        )


@dataclass(frozen=True)
class BlockRows:
    """The rows that a block computes for one network.

    draws: of this block, by name, (rows, ...). adapter: (rows,), index of each row's adapter.
    image: (rows,), index of each row's image if the inputs are those of images; None if they are
    those of the rows.
    """

    draws: Mapping[str, Tensor]
    adapter: Tensor
    image: Tensor | None = None

    def of_rows(self, inputs: Tensor) -> Tensor:
        """Returns (rows, ...): the inputs of every row."""
        return inputs if self.image is None else inputs[self.image]


def padded(values: Tensor, count: int) -> Tensor:
    """Returns (count, ...): values (n, ...) followed by zeros."""
    return F.pad(values, [0, 0] * (values.ndim - 1) + [0, count - len(values)])


def _joined(parts: Sequence[Mapping[str, Tensor]], counts: Sequence[int]) -> dict[str, Tensor]:
    shapes = {name: values.shape[1:] for part in parts for name, values in part.items()}
    return {
        name: torch.cat(
            [
                part[name] if name in part else torch.zeros(count, *shape)
                for part, count in zip(parts, counts, strict=True)
            ]
        )
        for name, shape in shapes.items()
    }

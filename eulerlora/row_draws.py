"""The random input of rows: named tensors that a method draws and its network reads.

A network is a deterministic function of images, rows and draws. Draws are on the CPU, come from one
generator per image, and have no trained values: means and scales belong to the network.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

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

"""The rows of a pass, block by block: rows of an image and adapter may share the first blocks."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from eulerlora.adapter_heads import AdapterHeads
from eulerlora.backbone_network import VisionTransformer
from eulerlora.methods.contract import Method
from eulerlora.row_draws import RowDraws
from eulerlora.rows import Rows
from eulerlora.settings import AdapterSettings, Preprocessing


class PassNetwork(Protocol):
    """The parts of a network that a pass uses."""

    backbone: VisionTransformer
    method: Method
    blocks: nn.ModuleList
    heads: AdapterHeads
    preprocessing: Preprocessing
    settings: AdapterSettings


@dataclass(frozen=True)
class PassPart:
    """The images and rows of one network in a pass; arguments as in
    `AdaptedVisionTransformer.outputs`."""

    network: PassNetwork
    images: Tensor
    rows: Rows
    draws: RowDraws


@dataclass(frozen=True)
class DistinctRows:
    """One row for all rows with the same features.

    part: the part of these rows. position: (all rows,), the position of each row's features among
    them; None if every row has its own.
    """

    part: PassPart
    position: Tensor | None = None

    def of_all(self, values: Tensor) -> Tensor:
        """Returns (all rows, ...) from the values (rows, ...) of the distinct ones."""
        return values if self.position is None else values[self.position]


def distinct_rows(part: PassPart) -> DistinctRows:
    """Returns the rows whose features differ; those of a compiled pass, without counts, all do."""
    rows, differ = part.rows, part.network.method.features_differ
    if differ == "draw" or not rows.counts:
        return DistinctRows(part)
    keys = torch.stack([rows.image, rows.adapter if differ == "adapter" else rows.image])
    _, position, sizes = keys.unique_consecutive(return_inverse=True, return_counts=True, dim=1)
    first = sizes.cumsum(0) - sizes
    kept = Rows(rows.image[first], rows.adapter[first], ())
    return DistinctRows(PassPart(part.network, part.images, kept, part.draws.rows(first)), position)


@dataclass(frozen=True)
class RowInputs:
    """The inputs of a part's rows. index: (rows,), of each row's input. count: of inputs."""

    index: Tensor
    count: int


@dataclass(frozen=True)
class Stage:
    """The rows of consecutive blocks; in the first of them, rows may share an input.

    inputs: of the rows of each part, in the first block.
    """

    parts: Sequence[PassPart]
    inputs: Sequence[RowInputs]

    @property
    def index(self) -> Tensor:
        """(rows,), the input of every row of all parts."""
        if len(self.inputs) == 1:
            return self.inputs[0].index
        firsts = [positions.start for positions in slices_of([part.count for part in self.inputs])]
        return torch.cat(
            [part.index + first for part, first in zip(self.inputs, firsts, strict=True)]
        )


def stages_of(parts: Sequence[PassPart], last: int) -> dict[int, Stage]:
    """Returns the stages of a pass by their first block, ascending; `last`: the last block.

    With shared blocks, the first stage has a row for each image and adapter.
    """
    shared = min(last, *(part.draws.shared_blocks for part in parts))
    images = image_stage(parts)
    if not shared:
        return {0: images}
    prefixes = [part.rows.prefixes(part.network.settings.adapters) for part in parts]
    first = [
        replace(part, rows=prefix.rows, draws=part.draws.rows(prefix.first))
        for part, prefix in zip(parts, prefixes, strict=True)
    ]
    inputs = [RowInputs(prefix.of_row, len(prefix.rows)) for prefix in prefixes]
    return {0: image_stage(first), shared: Stage(parts, inputs)}


def image_stage(parts: Sequence[PassPart]) -> Stage:
    """Returns a stage whose inputs are images."""
    return Stage(parts, [RowInputs(part.rows.image, len(part.images)) for part in parts])


def slices_of(counts: Sequence[int]) -> list[slice]:
    """Returns the consecutive positions of parts with these numbers of elements."""
    return list(
        itertools.starmap(slice, itertools.pairwise(itertools.accumulate(counts, initial=0)))
    )

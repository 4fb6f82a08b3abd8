"""A pass of rows through a frozen Vision Transformer, for one or several methods at a time."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eulerlora.adapted_attention import BlockAdapters
from eulerlora.adapter_heads import AdapterHeads
from eulerlora.backbone_network import EncoderBlock, VisionTransformer
from eulerlora.preprocess import normalise
from eulerlora.row_draws import BlockRows, RowDraws
from eulerlora.rows import Rows
from eulerlora.settings import Preprocessing

MIN_STANDARD_DEVIATION = 1e-3
"""Lower limit of the standard deviation over patches: its logarithm is finite for a plain image."""


class NetworkOutput(NamedTuple):
    """The output of a pass, both in float32.

    logits: (rows, classes). features: (rows, 3 * width), for `eulerlora.feature_distance`: the
    pooled features of the backbone; the mean patch token after the first block; and the logarithm
    of the standard deviation of the patch embeddings, which is low for an image without structure.
    The first two are scaled to unit length (Mahalanobis++, Mueller and Hein, ICML 2025).
    """

    logits: Tensor
    features: Tensor


class PassNetwork(Protocol):
    """The parts of a network that a pass uses."""

    backbone: VisionTransformer
    blocks: nn.ModuleList
    heads: AdapterHeads
    preprocessing: Preprocessing


@dataclass(frozen=True)
class BlockPart:
    """The rows of a block that belong to one network.

    adapters: of that network in this block. inputs: position of its images or rows in the block's
    inputs; None if it is the only network of the pass.
    """

    adapters: nn.Module
    rows: BlockRows
    inputs: slice | None = None

    def attention(
        self, inputs: Tensor, frozen: nn.MultiheadAttention, queries: int | None
    ) -> Tensor:
        """Returns the self-attention of the part's rows; `inputs` are those of the whole block."""
        assert isinstance(self.adapters, BlockAdapters)
        part = inputs if self.inputs is None else inputs[self.inputs]
        return self.adapters.attention(part, frozen, self.rows, queries)


Block = Callable[[Tensor, nn.Module, Sequence[BlockPart], Tensor | None, int | None], Tensor]


@dataclass(frozen=True)
class PassPart:
    """The images and rows of one network in a pass; arguments as in
    `AdaptedVisionTransformer.outputs`."""

    network: PassNetwork
    images: Tensor
    rows: Rows
    draws: RowDraws


def run_pass(parts: Sequence[PassPart], block: Block | None = None) -> list[NetworkOutput]:
    """Returns the outputs of each part's network from one pass of their common backbone.

    The networks have the same backbone, image size and normalisation; attention and heads run for
    each network, all other operations once. block: as in `AdaptedVisionTransformer.outputs`.
    """
    block, backbone = block or adapted_block, parts[0].network.backbone
    images, image = _joined_images(parts)
    with torch.autocast(images.device.type, enabled=False):  # rounding here moves answers most
        patches = backbone.patches(normalise(images, parts[0].network.preprocessing))
    contrast = log_deviation(patches)[image]  # (rows, width)
    tokens = backbone.tokens(patches)  # (images, tokens, width)
    last = len(backbone.encoder.layers) - 1
    pooled = 1 if backbone.settings.pooling == "class" else None  # leading tokens in use
    for index, frozen in enumerate(backbone.encoder.layers):
        row_image = image if index == 0 else None  # rows of an image differ from here on
        if index == min(1, last):  # the output of the first block, if there is another one
            texture = backbone.patch_tokens(tokens).mean(dim=1)
            texture = texture if row_image is None else texture[image]
        queries = pooled if index == last else None
        tokens = block(tokens, frozen, _block_parts(parts, index), row_image, queries)
    output = backbone.pooled(tokens)
    features = torch.cat([unit_length(output), unit_length(texture), contrast], dim=-1)
    return [
        NetworkOutput(
            part.network.heads(output[rows], part.rows.adapter, part.draws.head), features[rows]
        )
        for part, rows in zip(parts, _slices([len(part.rows) for part in parts]), strict=True)
    ]


def adapted_block(
    tokens: Tensor,
    frozen: nn.Module,
    parts: Sequence[BlockPart],
    image: Tensor | None,
    queries: int | None,
) -> Tensor:
    """Runs one block: adapted self-attention and the frozen MLP, each after its layer norm.

    tokens: (rows, tokens, width); with `image`, (images, tokens, width). frozen: an `EncoderBlock`.
    parts: of all rows, in order. image: (rows,), index of each row's image. queries: number of
    leading tokens to return; None returns all. Returns (rows, queries, width).
    """
    assert isinstance(frozen, EncoderBlock)
    normalised = frozen.ln_1(tokens)
    attended = [part.attention(normalised, frozen.self_attention, queries) for part in parts]
    tokens = tokens[:, :queries] if image is None else tokens[image, :queries]
    return frozen.after_attention(tokens, attended[0] if len(parts) == 1 else torch.cat(attended))


def _block_parts(parts: Sequence[PassPart], index: int) -> list[BlockPart]:
    """Returns the parts of a block; the inputs of the first block are those of the images."""
    counts = [len(part.images if index == 0 else part.rows) for part in parts]
    positions: Sequence[slice | None] = [None] if len(parts) == 1 else _slices(counts)
    return [
        BlockPart(
            part.network.blocks[index],
            BlockRows(
                part.draws.block(index),
                part.rows.adapter,
                part.rows.image if index == 0 else None,
            ),
            inputs,
        )
        for part, inputs in zip(parts, positions, strict=True)
    ]


def _joined_images(parts: Sequence[PassPart]) -> tuple[Tensor, Tensor]:
    """Returns the images of all parts and (rows,), the index of each row's image among them."""
    if len(parts) == 1:
        return parts[0].images, parts[0].rows.image
    firsts = [positions.start for positions in _slices([len(part.images) for part in parts])]
    image = [part.rows.image + first for part, first in zip(parts, firsts, strict=True)]
    return torch.cat([part.images for part in parts]), torch.cat(image)


def _slices(counts: Sequence[int]) -> list[slice]:
    """Returns the consecutive positions of parts with these numbers of elements."""
    return list(
        itertools.starmap(slice, itertools.pairwise(itertools.accumulate(counts, initial=0)))
    )


def unit_length(vectors: Tensor) -> Tensor:
    """Returns vectors (..., width) scaled to length 1, in float32."""
    return F.normalize(vectors.float(), dim=-1)


def log_deviation(patches: Tensor) -> Tensor:
    """Returns the logarithm of the standard deviation over patches, (n, width), in float32.

    patches: (n, patches, width).
    """
    return patches.float().std(dim=1, correction=0).clamp_min(MIN_STANDARD_DEVIATION).log()

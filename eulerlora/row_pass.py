"""A pass of rows through a frozen Vision Transformer, for one or several methods at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eulerlora.adapted_attention import BlockAdapters
from eulerlora.backbone_network import EncoderBlock
from eulerlora.preprocess import normalise
from eulerlora.row_draws import BlockRows
from eulerlora.row_stages import PassPart, Stage, distinct_rows, image_stage, slices_of, stages_of

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


def run_pass(parts: Sequence[PassPart], block: Block | None = None) -> list[NetworkOutput]:
    """Returns the outputs of each part's network from one pass of their common backbone.

    The networks have the same backbone, image size and normalisation; attention and heads run for
    each network, all other operations once. Rows with equal features share all blocks, and blocks
    that the rows of an image and adapter share run once for all of them.
    block: as in `AdaptedVisionTransformer.outputs`.
    """
    block, backbone = block or adapted_block, parts[0].network.backbone
    layers, pooling = backbone.encoder.layers, backbone.settings.pooling
    last = len(layers) - 1
    distinct = [distinct_rows(part) for part in parts]
    chosen = [rows.part for rows in distinct]
    stages, image = stages_of(chosen, last), image_stage(chosen).index
    stage = stages[0]
    images = _joined_images(chosen)
    with torch.autocast(images.device.type, enabled=False):  # rounding here moves answers most
        patches = backbone.patches(normalise(images, parts[0].network.preprocessing))
    contrast = log_deviation(patches)[image]  # (rows, width)
    tokens = backbone.tokens(patches)  # (images, tokens, width)
    for index, frozen in enumerate(layers):
        if index == min(1, last):  # the output of the first block, if there is another one
            texture = backbone.patch_tokens(tokens).mean(dim=1)
        begins, stage = index in stages, stages.get(index, stage)
        queries = 1 if index == last and pooling == "class" else None  # leading tokens in use
        block_parts = _block_parts(stage, index, begins)
        tokens = block(tokens, frozen, block_parts, stage.index if begins else None, queries)
    if last == 0 or len(stages) > 1:
        texture = texture[stage.index]
    output = backbone.pooled(tokens)
    features = torch.cat([unit_length(output), unit_length(texture), contrast], dim=-1)
    positions = slices_of([len(part.rows) for part in chosen])
    return [
        NetworkOutput(
            part.network.heads(rows.of_all(output[own]), part.rows.adapter, part.draws.head),
            rows.of_all(features[own]),
        )
        for part, rows, own in zip(parts, distinct, positions, strict=True)
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


def _block_parts(stage: Stage, index: int, begins: bool) -> list[BlockPart]:
    """Returns the parts of a block. begins: True if the block is the first of the stage."""
    parts = list(zip(stage.parts, stage.inputs, strict=True))
    counts = [inputs.count if begins else len(part.rows) for part, inputs in parts]
    positions: Sequence[slice | None] = [None] if len(parts) == 1 else slices_of(counts)
    return [
        BlockPart(
            part.network.blocks[index],
            BlockRows(part.draws.block(index), part.rows.adapter, inputs.index if begins else None),
            position,
        )
        for (part, inputs), position in zip(parts, positions, strict=True)
    ]


def _joined_images(parts: Sequence[PassPart]) -> Tensor:
    images = [part.images for part in parts]
    return images[0] if len(images) == 1 else torch.cat(images)


def unit_length(vectors: Tensor) -> Tensor:
    """Returns vectors (..., width) scaled to length 1, in float32."""
    return F.normalize(vectors.float(), dim=-1)


def log_deviation(patches: Tensor) -> Tensor:
    """Returns the logarithm of the standard deviation over patches, (n, width), in float32.

    patches: (n, patches, width).
    """
    return patches.float().std(dim=1, correction=0).clamp_min(MIN_STANDARD_DEVIATION).log()

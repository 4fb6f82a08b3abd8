"""A frozen Vision Transformer with adapters: (images, rows, draws) -> logits and features of rows.

One pass serves one or several networks on the same backbone. Rows of an image and adapter with
equal draws share the first blocks, and rows with equal features share all blocks.

`AdaptedVisionTransformer` is the network, `run_pass` its computation, `adapted_block` one block.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.images.preprocess import normalise
from eulerlora.nn.attention import AttentionAdapters, BlockAdapters, attend
from eulerlora.nn.backbone import EncoderBlock, VisionTransformer
from eulerlora.nn.method import AnyMethod
from eulerlora.nn.rows import BlockRows, DistinctRows, RowDraws, Rows
from eulerlora.settings import Draw, Preprocessing


@dataclass(frozen=True)
class PassPart:
    """The images and rows of one network in a pass; arguments as in
    `AdaptedVisionTransformer.outputs`."""

    network: "AdaptedVisionTransformer"
    images: Tensor
    rows: Rows
    draws: RowDraws

    def selected(self, distinct: DistinctRows) -> "PassPart":
        """Returns the part of distinct rows, with the draws of the first row of each."""
        return replace(self, rows=distinct.rows, draws=self.draws.rows(distinct.first))


def rows_by_features(part: PassPart) -> DistinctRows | None:
    """Returns the rows whose features differ; None if all do.

    They do in a compiled pass, whose rows have no counts.
    """
    differ = part.network.method.features_differ
    if differ == "draw" or not part.rows.counts:
        return None
    return part.rows.distinct(by_adapter=differ == "adapter")


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
    distinct = [part.rows.distinct() for part in parts]
    first = [part.selected(rows) for part, rows in zip(parts, distinct, strict=True)]
    inputs = [RowInputs(rows.of_row, len(rows.rows)) for rows in distinct]
    return {0: image_stage(first), shared: Stage(parts, inputs)}


def image_stage(parts: Sequence[PassPart]) -> Stage:
    """Returns a stage whose inputs are images."""
    return Stage(parts, [RowInputs(part.rows.image, len(part.images)) for part in parts])


def slices_of(counts: Sequence[int]) -> list[slice]:
    """Returns the consecutive positions of parts with these numbers of elements."""
    return list(
        itertools.starmap(slice, itertools.pairwise(itertools.accumulate(counts, initial=0)))
    )


MIN_STANDARD_DEVIATION = 1e-3
"""Lower limit of the standard deviation over patches: its logarithm is finite for a plain image."""


class NetworkOutput(NamedTuple):
    """The output for rows: those of a pass, in float32, or those of one image.

    logits: (rows, classes). features: (rows, 3 * width), for `eulerlora.scores.ood_scores`:
    the pooled features of the backbone; the mean patch token after the first block; and the
    logarithm of the standard deviation of the patch embeddings, which is low for an image without
    structure. The first two are scaled to unit length (Mahalanobis++, Mueller and Hein, ICML 2025).
    distance: the feature distance of the mean features of an image, () float64; None without
    feature statistics. views: (rows,) int64, of the rows of an image; None if all see the image.
    Those of one image (`eulerlora.nn.runtime.predict_images`) are on the CPU, and their logits are
    float64, divided by the temperature.
    """

    logits: Tensor
    features: Tensor
    distance: Tensor | None = None
    views: Tensor | None = None

    @property
    def log_probabilities(self) -> Tensor:
        """(rows, classes) float64; a row with a logit that is not finite is NaN."""
        exact = self.logits.double()
        unusable = ~exact.isfinite().all(dim=-1, keepdim=True)
        return exact.log_softmax(dim=-1).masked_fill(unusable, torch.nan)

    @property
    def log_partition(self) -> Tensor:
        """(rows,) float64, log-sum-exp of the logits."""
        return self.logits.double().logsumexp(dim=-1)


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
    distinct = [rows_by_features(part) for part in parts]
    chosen = [
        part if rows is None else part.selected(rows)
        for part, rows in zip(parts, distinct, strict=True)
    ]
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
            part.network.heads(of_all(output[own], rows), part.rows.adapter, part.draws.head),
            of_all(features[own], rows),
        )
        for part, rows, own in zip(parts, distinct, positions, strict=True)
    ]


def of_all(values: Tensor, distinct: DistinctRows | None) -> Tensor:
    """Returns (all rows, ...) from the values (rows, ...) of the distinct ones."""
    return values if distinct is None else values[distinct.of_row]


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


class ProjectedBlock(ABC):
    """`adapted_block` that computes each projection by itself, for rows of one network."""

    @abstractmethod
    def projection(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        adapters: AttentionAdapters,
        index: int,
        coefficients: Tensor,
    ) -> Tensor:
        """Returns an adapted projection of the inputs (rows, tokens, width), of the same shape.

        index: of the projection in `PROJECTIONS`. weight, bias: frozen. coefficients: (rows, 4,
        ranks).
        """

    def __call__(
        self,
        tokens: Tensor,
        frozen: nn.Module,
        parts: Sequence[BlockPart],
        image: Tensor | None,
        queries: int | None,
    ) -> Tensor:
        """Shapes as in `adapted_block`, for the rows of one network."""
        assert isinstance(frozen, EncoderBlock)
        (part,) = parts
        adapters = part.adapters
        assert isinstance(adapters, AttentionAdapters)
        coefficients = adapters.coefficients(part.rows)
        tokens = tokens if image is None else tokens[image]  # (rows, tokens, width)
        normalised = frozen.ln_1(tokens)
        attended = self._attention(
            normalised, frozen.self_attention, adapters, coefficients, queries
        )
        return frozen.after_attention(tokens[:, :queries], attended)

    def _attention(
        self,
        inputs: Tensor,
        frozen: nn.MultiheadAttention,
        adapters: AttentionAdapters,
        coefficients: Tensor,
        queries: int | None,
    ) -> Tensor:
        """Returns (rows, queries, width); arguments as in `adapted_attention`, for every row."""
        assert frozen.in_proj_weight is not None
        assert frozen.in_proj_bias is not None
        weights = [*frozen.in_proj_weight.chunk(3), frozen.out_proj.weight]
        biases = [*frozen.in_proj_bias.chunk(3), frozen.out_proj.bias]

        def project(tokens: Tensor, index: int) -> Tensor:
            return self.projection(
                tokens, weights[index], biases[index], adapters, index, coefficients
            )

        heads = [
            project(tokens, index).unflatten(-1, (frozen.num_heads, -1)).transpose(1, 2)
            for index, tokens in enumerate((inputs[:, :queries], inputs, inputs))
        ]
        context = attend(frozen, *heads)  # (rows, heads, queries, head_dim)
        return project(context.transpose(1, 2).flatten(2), 3)


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


class AdaptedVisionTransformer(nn.Module):
    """A frozen backbone with adapters in every block.

    A `Draw` (mode, samples, seed, sampler) determines the row draws, by the law of the method; the
    network is a deterministic function of images, rows and row draws. Only the adapters and their
    heads are trainable. preprocessing: of the images; None does not change their colours. method:
    its tensors and the law of its draws.
    """

    def __init__(
        self,
        backbone: VisionTransformer,
        method: AnyMethod,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__()
        self.preprocessing = preprocessing or Preprocessing(size=backbone.settings.image_size)
        self.backbone = backbone.requires_grad_(False).eval()
        self.method, self.settings = method, method.adapters
        self.blocks = nn.ModuleList(self.method.blocks())
        self.heads = self.method.heads()

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    def initialise(self, generator: Generator) -> None:
        """Draws the adapters and heads; trajectories then have the features of the backbone, or
        nearly (`BlockAdapters.initialise`)."""
        for block in self.blocks:
            assert isinstance(block, BlockAdapters)
            block.initialise(generator)
        self.heads.initialise(generator)

    def train(self, mode: bool = True) -> "AdaptedVisionTransformer":
        """Sets the training mode of the adapters; the backbone stays in evaluation mode."""
        super().train(mode)
        self.backbone.eval()
        return self

    def adapter_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields names and parameters of the adapters and heads, in a fixed order."""
        for name, parameter in self.named_parameters():
            if not name.startswith("backbone."):
                yield name, parameter

    def divergence(self) -> Tensor | None:
        """Returns the sum over blocks of `BlockAdapters.divergence`, or None."""
        divergences = [
            block.divergence() for block in self.blocks if isinstance(block, BlockAdapters)
        ]
        learned = [divergence for divergence in divergences if divergence is not None]
        return torch.stack(learned).sum() if learned else None

    def constrain(self) -> None:
        """Moves the tensors of all blocks into their admissible sets (`BlockAdapters`)."""
        for block in self.blocks:
            assert isinstance(block, BlockAdapters)
            block.constrain()

    def draw_rows(self, draws: Sequence[Draw]) -> RowDraws:
        """Returns the random input of the rows of images, on the CPU. draws: one per image.

        The rows of an image are drawn from its draw alone.
        """
        counts = [self.settings.adapters * draw.count for draw in draws]
        return RowDraws.cat([self.method.draw(draw) for draw in draws], counts)

    def forward(
        self, images: Tensor, rows: Rows, draws: RowDraws, block: Block | None = None
    ) -> Tensor:
        """Returns logits (rows, classes); arguments as in `outputs`."""
        return self.outputs(images, rows, draws, block).logits

    def outputs(
        self, images: Tensor, rows: Rows, draws: RowDraws, block: Block | None = None
    ) -> NetworkOutput:
        """Returns logits and features of every row.

        images: (n, 3, image_size, image_size) in [0, 1]. draws: on the device of the images.
        block: computes one block, `adapted_block` if None; training may pass one that recomputes
        activations.
        """
        return run_pass([PassPart(self, images, rows, draws)], block)[0]

"""A frozen Vision Transformer with adapters: (images, rows, row draws) -> logits and features.

`predict_images` runs it for images with a `Draw` for each, `AdaptedVisionTransformer` is the
network, and `adapted_block` is one block. Rows with equal features share all blocks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.images.preprocess import normalise
from eulerlora.nn.attention import (
    DistanceAttention,
    RotaryAttention,
    SelfAttention,
    projected_attention,
)
from eulerlora.nn.backbone import EncoderBlock, LayerScale, VisionTransformer
from eulerlora.nn.device import download
from eulerlora.nn.method import AnyMethod, AttentionAdapters, BlockAdapters, BlockRows, RowDraws
from eulerlora.nn.rows import DistinctRows, Rows, ViewedRows, view_order
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.scores.trajectories import Trajectories
from eulerlora.settings import UNSCALED, Draw, Preprocessing, Temperatures

_MIN_STANDARD_DEVIATION = 1e-3
"""Lower limit of the standard deviation over patches: its logarithm is finite for a plain image."""
_WITH_KEY_BIAS = DistanceAttention, RotaryAttention
"""Attention that a bias of the keys changes."""
FEATURES_PER_WIDTH = 3
"""Number of features of a row (`NetworkOutput.features`) for each feature of a token."""


class NetworkOutput(NamedTuple):
    """Logits and features of the rows of a pass.

    Attributes:
        logits: (rows, classes), float32.
        features: (rows, 3 * width) float32, for `eulerlora.scores.ood_scores`: the pooled features
            of the backbone; the mean patch token after the first block; and the logarithm of the
            standard deviation of the patch embeddings, which is low for an image without structure.
            The first two are scaled to unit length (Mahalanobis++, Mueller and Hein, ICML 2025).
    """

    logits: Tensor
    features: Tensor


class EncoderOutput(NamedTuple):
    """What the blocks of a network make of the patches of images, for every row of a pass.

    Attributes:
        pooled: (rows, width), the input of the heads.
        features: As in `NetworkOutput`.
    """

    pooled: Tensor
    features: Tensor


Block = Callable[[Tensor, nn.Module, nn.Module, BlockRows], Tensor]


def adapted_block(
    tokens: Tensor, frozen: nn.Module, adapters: nn.Module, rows: BlockRows
) -> Tensor:
    """Runs one block: adapted self-attention and the frozen MLP, each after its layer norm.

    Args:
        tokens: (rows, tokens, width); with `rows.image`, (images, tokens, width).
        frozen: An `EncoderBlock`.
        adapters: The `BlockAdapters` of the block.
        rows: With the draws of the block.

    Returns:
        (rows, queries, width).
    """
    assert isinstance(frozen, EncoderBlock)
    assert isinstance(adapters, BlockAdapters)
    attended = adapters.attention(frozen.ln_1(tokens), frozen.self_attention, rows)
    return frozen.after_attention(rows.of_rows(tokens[:, : rows.queries]), attended)


class ProjectedBlock(ABC):
    """`adapted_block` that computes each projection by itself."""

    @abstractmethod
    def projection(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        down: Tensor,
        up: Tensor,
        coefficients: Tensor,
    ) -> Tensor:
        """Computes an adapted projection; arguments as in `adapted_linear`."""

    def __call__(
        self, tokens: Tensor, frozen: nn.Module, adapters: nn.Module, rows: BlockRows
    ) -> Tensor:
        assert isinstance(frozen, EncoderBlock)
        assert isinstance(adapters, AttentionAdapters)
        coefficients = adapters.coefficients(rows)  # (rows, 4, rank)
        down, up = adapters.directions(rows)  # (4, groups, rank, width)
        tokens = rows.of_rows(tokens)  # (rows, tokens, width)

        def project(inputs: Tensor, weight: Tensor, bias: Tensor, index: int) -> Tensor:
            return self.projection(
                inputs, weight, bias, down[index], up[index], coefficients[:, index]
            )

        normed, attention = frozen.ln_1(tokens), frozen.self_attention
        attended = projected_attention(normed, attention, project, rows.queries)
        return frozen.after_attention(tokens[:, : rows.queries], attended)


class AdaptedVisionTransformer(nn.Module):
    """A frozen backbone with adapters in every block.

    It is a deterministic function of images, rows and row draws; `draw_rows` makes row draws. Only
    the adapters and their heads are trainable.

    Args:
        preprocessing: Of the images; None does not change their colours.
        method: Its tensors and the law of its draws.
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
        self.blocks = nn.ModuleList(map(method.block, range(method.depth)))
        self.heads = self.method.heads()

    @property
    def depth(self) -> int:
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
        """The sum over blocks of `BlockAdapters.divergence`, or None."""
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
        """Row draws of images, on the CPU; those of an image depend on its draw only."""
        counts = [self.settings.adapters * draw.count for draw in draws]
        return RowDraws.cat([self.method.draw(draw) for draw in draws], counts)

    def forward(
        self, images: Tensor, rows: Rows, draws: RowDraws, block: Block | None = None
    ) -> Tensor:
        """Logits (rows, classes); arguments as in `outputs`."""
        return self.outputs(images, rows, draws, block).logits

    def outputs(
        self, images: Tensor, rows: Rows, draws: RowDraws, block: Block | None = None
    ) -> NetworkOutput:
        """Logits and features of every row.

        Args:
            images: (n, 3, image_size, image_size) in [0, 1].
            rows: The image and the adapter of each row, on the device of the images.
            draws: Of the rows, on the device of the images.
            block: Computes one block, `adapted_block` if None; training may pass one that
                recomputes activations.
        """
        encoded = self.encode(self.patches(images), rows, draws, block)
        logits = self.heads(encoded.pooled, rows.adapter, draws.head)
        return NetworkOutput(logits, encoded.features)

    def patches(self, images: Tensor) -> Tensor:
        """Embeddings (n, patches, width) of the patches of images, in float32 in any precision."""
        with torch.autocast(images.device.type, enabled=False):  # rounding here moves answers most
            return self.backbone.patches(normalise(images, self.preprocessing))

    def encode(
        self, patches: Tensor, rows: Rows, draws: RowDraws, block: Block | None = None
    ) -> EncoderOutput:
        """Runs the blocks; `patches` are those of the images, other arguments as in `outputs`."""
        block = block or adapted_block
        layers, pooling = self.backbone.encoder.layers, self.backbone.settings.pooling
        last = len(layers) - 1
        distinct = self._rows_by_features(rows, draws)
        computed = rows if distinct is None else distinct.rows
        order = computed.positions.flatten()
        place = order.argsort()  # of the output of every row
        if distinct is not None:
            order, place = distinct.first[order], place[distinct.of_row]
        draws, image, adapter = draws.rows(order), rows.image[order], rows.adapter[order]
        group_adapter = adapter.view(computed.positions.shape)[:, 0]
        deviation = patches.float().std(dim=1, correction=0)  # (images, width), over patches
        contrast = deviation.clamp_min(_MIN_STANDARD_DEVIATION).log()[image]
        tokens = self.backbone.tokens(patches)  # (images, tokens, width)
        for index, (frozen, adapters) in enumerate(zip(layers, self.blocks, strict=True)):
            if index == min(1, last):  # the output of the first block, if there is another one
                texture = self.backbone.patch_tokens(tokens).mean(dim=1)
            inputs = image if index == 0 else None
            queries = 1 if index == last and pooling == "class" else None  # leading tokens in use
            block_rows = BlockRows(draws.block(index), adapter, group_adapter, inputs, queries)
            tokens = block(tokens, frozen, adapters, block_rows)
        if last == 0:
            texture = texture[image]
        pooled = self.backbone.pooled(tokens)
        of_unit_length = [F.normalize(part.float(), dim=-1) for part in (pooled, texture)]
        features = torch.cat([*of_unit_length, contrast], dim=-1)
        return EncoderOutput(pooled[place], features[place])

    def _rows_by_features(self, rows: Rows, draws: RowDraws) -> DistinctRows | None:
        """The rows whose features differ; None if all are computed.

        Without draws of the blocks, the rows of an image and adapter have equal features; without
        tensors in the blocks too, those of an image. A compiled pass, whose rows have no counts,
        computes all.
        """
        if draws.blocks or not rows.counts:
            return None
        return rows.distinct(by_adapter=any(True for _ in self.blocks.parameters()))


def round_products(network: AdaptedVisionTransformer) -> None:
    """Converts the weights of the blocks' matrix products to bfloat16, in place."""
    remove_key_biases(network)
    for module in (*network.backbone.encoder.layers.modules(), *network.blocks):
        if not isinstance(module, nn.LayerNorm | LayerScale):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.bfloat16()


def remove_key_biases(network: AdaptedVisionTransformer) -> None:
    """Sets the biases of the keys to zero where attention is by their dot product, in place.

    Such a bias, if it is not rotated, adds the same number to all attention logits of a query,
    which changes no softmax, but a large one (DINOv2 has elements above 30) leaves few digits of
    bfloat16 to the keys.
    """
    for module in network.backbone.encoder.layers.modules():
        if isinstance(module, SelfAttention) and not isinstance(module, _WITH_KEY_BIAS):
            assert module.in_proj_bias is not None
            module.in_proj_bias.data.chunk(3)[1].zero_()


class RowNetwork(Protocol):
    """An `AdaptedVisionTransformer` or its `Runtime`, as predictions use it."""

    @property
    def settings(self) -> AdapterSettings: ...

    def draw_rows(self, draws: Sequence[Draw]) -> RowDraws: ...

    def outputs(self, images: Tensor, rows: Rows, draws: RowDraws) -> NetworkOutput: ...


@torch.inference_mode()
def predict_images(
    network: RowNetwork,
    images: Tensor,
    draws: Sequence[Draw],
    temperatures: Temperatures = UNSCALED,
) -> list[Trajectories]:
    """Runs one batch, with a draw for each image, by a network in evaluation mode.

    Images are (n, 3, image_size, image_size) in [0, 1], or with a canvas (n, regions, 3,
    image_size, image_size), on the network's device. The rows of an image depend on its draw only,
    so that its result does not depend on the other images of the batch.
    """
    adapters = network.settings.adapters
    views = [view_order(draw, adapters) for draw in draws]
    rows = Rows.of([draw.count for draw in draws], adapters)
    seen = ViewedRows(images, rows)
    if images.ndim == 5 or any(draw.views > 1 for draw in draws):
        seen = rows.with_views(images, torch.cat([of_image.flatten() for of_image in views]))
    drawn = network.draw_rows(draws).to(images)
    output = network.outputs(seen.images, seen.rows.to(images.device), drawn)
    counts = [adapters * draw.count for draw in draws]
    logits, features = download(*output)
    return [
        Trajectories.of(
            (of_logits.double() / temperatures[draw.mode]).view(1, adapters, draw.count, -1),
            of_features.view(1, adapters, draw.count, -1),
            of_views.view(1, adapters, draw.count),
        )
        for draw, of_logits, of_features, of_views in zip(
            draws, logits.split(counts), features.split(counts), views, strict=True
        )
    ]

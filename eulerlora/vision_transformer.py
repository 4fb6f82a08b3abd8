"""A frozen Vision Transformer with adapters.

(images, rows, coefficients) -> logits and features of every row.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.adapted_attention import AttentionAdapters, adapted_attention
from eulerlora.backbone_network import EncoderBlock, VisionTransformer
from eulerlora.preprocess import normalise
from eulerlora.rows import Rows
from eulerlora.settings import AdapterSettings, Preprocessing

Block = Callable[[Tensor, nn.Module, nn.Module, Tensor, Tensor | None, int | None], Tensor]


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


class AdapterHeads(nn.Module):
    """One linear classification head for each adapter.

    weight: (adapters, classes, width). bias: (adapters, classes).
    """

    def __init__(self, width: int, classes: int, adapters: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(adapters, classes, width))
        self.bias = nn.Parameter(torch.zeros(adapters, classes))

    @torch.no_grad()
    def initialise(self, generator: Generator) -> None:
        """Draws every head like `nn.Linear`: uniform in [-1/sqrt(width), 1/sqrt(width)]."""
        bound = self.weight.shape[-1] ** -0.5
        self.weight.uniform_(-bound, bound, generator=generator)
        self.bias.uniform_(-bound, bound, generator=generator)

    def forward(self, features: Tensor, adapter: Tensor) -> Tensor:
        """Returns logits (rows, classes), in float32 under autocast too.

        features: (rows, width). adapter: (rows,), index of the head of each row.
        """
        with torch.autocast(features.device.type, enabled=False):
            logits = torch.einsum("nd,acd->nac", features.float(), self.weight) + self.bias
        return logits[torch.arange(len(features), device=logits.device), adapter]


class AdaptedVisionTransformer(nn.Module):
    """A frozen backbone with adapters in every block.

    Mode, steps and seed determine the coefficients; the network is a deterministic function of
    images and coefficients. Only the adapters and their heads are trainable. preprocessing: of the
    images; None does not change their colours.
    """

    def __init__(
        self,
        backbone: VisionTransformer,
        settings: AdapterSettings,
        classes: int,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__()
        shape = backbone.settings
        self.preprocessing = preprocessing or Preprocessing(size=shape.image_size)
        self.backbone = backbone.requires_grad_(False).eval()
        self.settings = settings
        self.blocks = nn.ModuleList(
            AttentionAdapters(shape.width, settings) for _ in range(shape.layers)
        )
        self.heads = AdapterHeads(shape.width, classes, settings.adapters)

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    def initialise(self, generator: Generator) -> None:
        """Draws the adapters and heads; every trajectory then has the features of the backbone."""
        for block in self.blocks:
            assert isinstance(block, AttentionAdapters)
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

    def forward(
        self, images: Tensor, rows: Rows, coefficients: Tensor, block: Block | None = None
    ) -> Tensor:
        """Returns logits (rows, classes); arguments as in `outputs`."""
        return self.outputs(images, rows, coefficients, block).logits

    def outputs(
        self, images: Tensor, rows: Rows, coefficients: Tensor, block: Block | None = None
    ) -> NetworkOutput:
        """Returns logits and features of every row.

        images: (n, 3, image_size, image_size) in [0, 1]. coefficients: (rows, blocks, 4, ranks).
        block: computes one block, `adapted_block` if None; training may pass one that recomputes
        activations.
        """
        block, backbone = block or adapted_block, self.backbone
        patches = backbone.patches(normalise(images, self.preprocessing))
        contrast = log_deviation(patches)[rows.image]  # (rows, width)
        tokens = backbone.tokens(patches)  # (images, tokens, width)
        per_block = zip(backbone.encoder.layers, self.blocks, coefficients.unbind(1), strict=True)
        last = self.depth - 1
        pooled = 1 if backbone.settings.pooling == "class" else None  # leading tokens in use
        for index, (frozen, adapters, block_coefficients) in enumerate(per_block):
            image = rows.image if index == 0 else None  # rows of an image differ from here on
            queries = pooled if index == last else None
            if index == min(1, last):  # the output of the first block, if there is another one
                texture = backbone.patch_tokens(tokens).mean(dim=1)
                texture = texture if image is None else texture[image]
            tokens = block(tokens, frozen, adapters, block_coefficients, image, queries)
        output = backbone.pooled(tokens)
        features = torch.cat([unit_length(output), unit_length(texture), contrast], dim=-1)
        return NetworkOutput(self.heads(output, rows.adapter), features)


def adapted_block(
    tokens: Tensor,
    frozen: nn.Module,
    adapters: nn.Module,
    coefficients: Tensor,
    image: Tensor | None,
    queries: int | None,
) -> Tensor:
    """Runs one block: adapted self-attention and the frozen MLP, each after its layer norm.

    tokens: (rows, tokens, width); with `image`, (images, tokens, width). frozen: an `EncoderBlock`.
    adapters: the `AttentionAdapters` of the block. coefficients: (rows, 4, ranks).
    image: (rows,), index of each row's image. queries: number of leading tokens to return; None
    returns all. Returns (rows, queries, width).
    """
    assert isinstance(frozen, EncoderBlock)
    assert isinstance(adapters, AttentionAdapters)
    normalised = frozen.ln_1(tokens)
    attended = adapted_attention(
        normalised, frozen.self_attention, adapters, coefficients, image, queries
    )
    tokens = tokens[:, :queries] if image is None else tokens[image, :queries]
    return frozen.after_attention(tokens, attended)


def unit_length(vectors: Tensor) -> Tensor:
    """Returns vectors (..., width) scaled to length 1, in float32."""
    return F.normalize(vectors.float(), dim=-1)


def log_deviation(patches: Tensor) -> Tensor:
    """Returns the logarithm of the standard deviation over patches, (n, width), in float32.

    patches: (n, patches, width).
    """
    return patches.float().std(dim=1, correction=0).clamp_min(MIN_STANDARD_DEVIATION).log()

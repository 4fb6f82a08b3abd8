"""A frozen torchvision Vision Transformer with adapters.

(images, rows, coefficients) -> logits and features of every row.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torchvision.models import VisionTransformer
from torchvision.models.vision_transformer import EncoderBlock

from eulerlora.adapted_attention import AttentionAdapters, adapted_attention
from eulerlora.colour_constancy import colour_constant
from eulerlora.rows import Rows
from eulerlora.settings import AdapterSettings, ColourConstancy

Block = Callable[[Tensor, nn.Module, nn.Module, Tensor, Tensor | None, int | None], Tensor]


MIN_STANDARD_DEVIATION = 1e-3
"""Lower limit of the standard deviation over patches: its logarithm is finite for a plain image."""


class NetworkOutput(NamedTuple):
    """The output of a pass, both in float32.

    logits: (rows, classes). features: (rows, 3 * width), for `eulerlora.feature_distance`: the
    class token after the last layer norm; the mean patch token after the first block; and the
    logarithm of the standard deviation of the patch embeddings, which is low for an image without
    structure. The first two are scaled to unit length (Mahalanobis++, Mueller and Hein, ICML 2025).
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
    """A frozen `torchvision.models.VisionTransformer` with adapters in every block.

    Mode, steps and seed determine the coefficients; the network is a deterministic function of
    images and coefficients. Only the adapters and their heads are trainable; the classification
    head of the backbone is not used. colour_constancy: applied to the images first.
    """

    def __init__(
        self,
        backbone: VisionTransformer,
        settings: AdapterSettings,
        classes: int,
        colour_constancy: ColourConstancy = "none",
    ) -> None:
        super().__init__()
        self.colour_constancy: ColourConstancy = colour_constancy
        self.backbone = backbone.requires_grad_(False).eval()
        self.settings = settings
        width = backbone.hidden_dim
        self.blocks = nn.ModuleList(
            AttentionAdapters(width, settings) for _ in backbone.encoder.layers
        )
        self.heads = AdapterHeads(width, classes, settings.adapters)

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
        block = block or adapted_block
        patches = embed_patches(self.backbone, colour_constant(images, self.colour_constancy))
        contrast = log_deviation(patches)[rows.image]  # (rows, width)
        tokens = with_class_token(self.backbone, patches)  # (images, tokens, width)
        per_block = zip(
            self.backbone.encoder.layers, self.blocks, coefficients.unbind(1), strict=True
        )
        last = self.depth - 1
        for index, (frozen, adapters, block_coefficients) in enumerate(per_block):
            image = rows.image if index == 0 else None  # rows of an image differ from here on
            queries = 1 if index == last else None  # the heads use the class token only
            if index == min(1, last):  # the output of the first block, if there is another one
                texture = tokens[:, 1:].mean(dim=1) if image is None else tokens[image, 1:].mean(1)
            tokens = block(tokens, frozen, adapters, block_coefficients, image, queries)
        class_tokens = self.backbone.encoder.ln(tokens[:, 0])
        features = torch.cat([unit_length(class_tokens), unit_length(texture), contrast], dim=-1)
        return NetworkOutput(self.heads(class_tokens, rows.adapter), features)


def adapted_block(
    tokens: Tensor,
    frozen: nn.Module,
    adapters: nn.Module,
    coefficients: Tensor,
    image: Tensor | None,
    queries: int | None,
) -> Tensor:
    """Runs one block: adapted self-attention and the frozen MLP, each after its layer norm.

    tokens: (rows, tokens, width); with `image`, (images, tokens, width). frozen: a torchvision
    `EncoderBlock`. adapters: the `AttentionAdapters` of the block. coefficients: (rows, 4, ranks).
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
    tokens = tokens + attended
    output: Tensor = tokens + frozen.mlp(frozen.ln_2(tokens))
    return output


def embed_patches(backbone: VisionTransformer, images: Tensor) -> Tensor:
    """Returns the embeddings of the patches without positions, (n, patches, width)."""
    patches: Tensor = backbone.conv_proj(images).flatten(2).transpose(1, 2)
    return patches


def with_class_token(backbone: VisionTransformer, patches: Tensor) -> Tensor:
    """Returns (n, tokens, width): class token and patches, with positions added."""
    class_token = backbone.class_token.expand(len(patches), -1, -1)
    tokens: Tensor = torch.cat([class_token, patches], dim=1) + backbone.encoder.pos_embedding
    return tokens


def unit_length(vectors: Tensor) -> Tensor:
    """Returns vectors (..., width) scaled to length 1, in float32."""
    return F.normalize(vectors.float(), dim=-1)


def log_deviation(patches: Tensor) -> Tensor:
    """Returns the logarithm of the standard deviation over patches, (n, width), in float32.

    patches: (n, patches, width).
    """
    return patches.float().std(dim=1, correction=0).clamp_min(MIN_STANDARD_DEVIATION).log()

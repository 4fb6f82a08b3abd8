"""(images, rows, coefficients) -> logits per row: a frozen torchvision ViT with adapters."""

from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor, nn
from torchvision.models import VisionTransformer
from torchvision.models.vision_transformer import EncoderBlock

from eulerlora.adapted_attention import AttentionAdapters, adapted_attention
from eulerlora.rows import Rows
from eulerlora.settings import AdapterSettings

Block = Callable[[Tensor, nn.Module, nn.Module, Tensor, Tensor | None, int | None], Tensor]


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
        """Draws every head as torch's `nn.Linear` does: uniform within 1/sqrt(width)."""
        bound = self.weight.shape[-1] ** -0.5
        self.weight.uniform_(-bound, bound, generator=generator)
        self.bias.uniform_(-bound, bound, generator=generator)

    def forward(self, features: Tensor, adapter: Tensor) -> Tensor:
        """features: (rows, width). adapter: (rows,), whose head. Returns (rows, classes).

        In float32 under autocast too: these few products decide between near classes.
        """
        with torch.autocast(features.device.type, enabled=False):
            every = torch.einsum("nd,acd->nac", features.float(), self.weight) + self.bias
        return every[torch.arange(len(features), device=every.device), adapter]


class AdaptedVisionTransformer(nn.Module):
    """A frozen `torchvision.models.VisionTransformer` with adapters in every block.

    The network knows no mode, step or seed: those are in the coefficients. Only the adapters and
    the heads are trainable; the backbone's own classification head is not used.
    """

    def __init__(
        self, backbone: VisionTransformer, settings: AdapterSettings, classes: int
    ) -> None:
        super().__init__()
        self.backbone = backbone.requires_grad_(False).eval()
        self.settings = settings
        width = backbone.hidden_dim
        self.blocks = nn.ModuleList(
            AttentionAdapters(width, settings) for _ in backbone.encoder.layers
        )
        self.heads = AdapterHeads(width, classes, settings.adapters)

    @property
    def depth(self) -> int:
        """How many blocks there are."""
        return len(self.blocks)

    def initialise(self, generator: Generator) -> None:
        """Draws the adapters and heads; every trajectory then equals the frozen backbone."""
        for block in self.blocks:
            assert isinstance(block, AttentionAdapters)
            block.initialise(generator)
        self.heads.initialise(generator)

    def train(self, mode: bool = True) -> "AdaptedVisionTransformer":
        """Nothing here behaves differently in training; the backbone's dropout stays off."""
        super().train(mode)
        self.backbone.eval()
        return self

    def adapter_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters of all that is trained, in a fixed order."""
        for name, parameter in self.named_parameters():
            if not name.startswith("backbone."):
                yield name, parameter

    def forward(
        self, images: Tensor, rows: Rows, coefficients: Tensor, block: Block | None = None
    ) -> Tensor:
        """Logits of every row.

        images: (n, 3, image_size, image_size) in [0, 1]. coefficients: (rows, blocks, 4, ranks).
        block: computes one block, `adapted_block` if None; training may pass one that recomputes
        activations. Returns (rows, classes).
        """
        block = block or adapted_block
        tokens = embed(self.backbone, images)  # (images, tokens, width)
        per_block = zip(
            self.backbone.encoder.layers, self.blocks, coefficients.unbind(1), strict=True
        )
        last = self.depth - 1
        for index, (frozen, adapters, own) in enumerate(per_block):
            image = rows.image if index == 0 else None  # the rows of an image part ways there
            queries = 1 if index == last else None  # the heads read the class token alone
            tokens = block(tokens, frozen, adapters, own, image, queries)
        features = self.backbone.encoder.ln(tokens[:, 0])
        logits: Tensor = self.heads(features, rows.adapter)
        return logits


def adapted_block(
    tokens: Tensor,
    frozen: nn.Module,
    adapters: nn.Module,
    coefficients: Tensor,
    image: Tensor | None,
    queries: int | None,
) -> Tensor:
    """One block: adapted self-attention, then the frozen MLP, each behind its layer norm.

    tokens: (rows, tokens, width); or (images, tokens, width) with image: (rows,), which of them
    each row has. frozen: a torchvision `EncoderBlock`. adapters: the block's AttentionAdapters.
    coefficients: (rows, 4, ranks). queries: how many tokens, from the first, are wanted; None:
    all. Returns (rows, queries, width).
    """
    assert isinstance(frozen, EncoderBlock)
    assert isinstance(adapters, AttentionAdapters)
    normal = frozen.ln_1(tokens)
    attended = adapted_attention(
        normal, frozen.self_attention, adapters, coefficients, image, queries
    )
    tokens = tokens[:, :queries] if image is None else tokens[image, :queries]
    tokens = tokens + attended
    output: Tensor = tokens + frozen.mlp(frozen.ln_2(tokens))
    return output


def embed(backbone: VisionTransformer, images: Tensor) -> Tensor:
    """Patch embeddings with the class token first and positions added: (n, tokens, width)."""
    patches = backbone.conv_proj(images).flatten(2).transpose(1, 2)
    class_token = backbone.class_token.expand(len(images), -1, -1)
    tokens: Tensor = torch.cat([class_token, patches], dim=1) + backbone.encoder.pos_embedding
    return tokens

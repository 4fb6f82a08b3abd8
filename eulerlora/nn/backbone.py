"""The Vision Transformer that serves as backbone: images -> tokens -> pooled features.

`BackboneSettings` has its options. With the defaults it is torchvision's Vision Transformer without
a head; parameters that other options do not add have torchvision's names.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eulerlora.nn.attention import DistanceAttention, RotaryAttention, SelfAttention
from eulerlora.settings import Activation, BackboneSettings

POSITIONS = "encoder.pos_embedding"
"""Name of the position embeddings among the parameters of a `VisionTransformer`."""


class LayerScale(nn.Module):
    """Multiplies every feature by a weight, (width,) (Touvron et al., ICCV 2021)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), 1e-5))

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (n, tokens, width)."""
        return tokens * self.weight


class _QuickGelu(nn.Module):
    """The approximation x * sigmoid(1.702 x) of GELU, which CLIP uses."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Elementwise."""
        return inputs * torch.sigmoid(1.702 * inputs)


class _SwiGlu(nn.Module):
    """The gated MLP of DINOv2's giant model (Shazeer, "GLU Variants Improve Transformer", 2020).

    `weights_in` has the gate, then the values.
    """

    def __init__(self, width: int, mlp_width: int) -> None:
        super().__init__()
        self.weights_in = nn.Linear(width, 2 * mlp_width)
        self.weights_out = nn.Linear(mlp_width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (n, tokens, width)."""
        gate, values = self.weights_in(tokens).chunk(2, dim=-1)
        output: Tensor = self.weights_out(F.silu(gate) * values)
        return output


_ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu-tanh": partial(nn.GELU, "tanh"),
    "quick-gelu": _QuickGelu,
}


class EncoderBlock(nn.Module):
    """Self-attention and an MLP, each after its layer norm and with a residual connection.

    `dropout` is applied to both branches before they are added; pretraining replaces it by
    stochastic depth.
    """

    def __init__(self, settings: BackboneSettings) -> None:
        super().__init__()
        width, norm = settings.width, partial(nn.LayerNorm, eps=settings.norm_epsilon)
        self.ln_1 = norm(width)
        self.self_attention = _attention(settings)
        self.scale_1 = LayerScale(width) if settings.layer_scale else nn.Identity()
        self.ln_2 = norm(width)
        self.mlp = _mlp(settings)
        self.scale_2 = LayerScale(width) if settings.layer_scale else nn.Identity()
        self.dropout: nn.Module = nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (n, tokens, width)."""
        normalised = self.ln_1(tokens)
        attended, _ = self.self_attention(normalised, normalised, normalised, need_weights=False)
        return self.after_attention(tokens, attended)

    def after_attention(self, tokens: Tensor, attended: Tensor) -> Tensor:
        """Adds the output of the attention, and runs the MLP."""
        tokens = tokens + self.dropout(self.scale_1(attended))
        output: Tensor = tokens + self.dropout(self.scale_2(self.mlp(self.ln_2(tokens))))
        return output


def _attention(settings: BackboneSettings) -> SelfAttention:
    width, heads = settings.width, settings.heads
    if settings.positions == "rotary":
        side = settings.image_size // settings.patch_size
        return RotaryAttention(width, heads, side, 1 + settings.registers)
    attention = DistanceAttention if settings.attention == "l2" else SelfAttention
    return attention(width, heads, batch_first=True)


def _mlp(settings: BackboneSettings) -> nn.Module:
    """An MLP with torchvision's initialisation and the names of its layers."""
    if settings.activation == "swiglu":
        return _SwiGlu(settings.width, settings.mlp_width)
    wide = nn.Linear(settings.width, settings.mlp_width)
    narrow = nn.Linear(settings.mlp_width, settings.width)
    for linear in (wide, narrow):
        nn.init.xavier_uniform_(linear.weight)
        _draw_normal(linear.bias, std=1e-6)
    activation = _ACTIVATIONS[settings.activation]()
    layers: list[tuple[str, nn.Module]] = [("0", wide), ("activation", activation), ("3", narrow)]
    return nn.Sequential(OrderedDict(layers))


class _Encoder(nn.Module):
    """Position embeddings (1, tokens without registers, width), blocks and layer norms.

    Rotary positions are those of the blocks.
    """

    def __init__(self, settings: BackboneSettings) -> None:
        super().__init__()
        norm = partial(nn.LayerNorm, settings.width, eps=settings.norm_epsilon)
        if settings.positions != "rotary":
            tokens = settings.tokens - settings.registers
            self.pos_embedding = nn.Parameter(torch.empty(1, tokens, settings.width))
            _draw_normal(self.pos_embedding, std=0.02)
        self.ln_pre = norm() if settings.pre_norm else nn.Identity()
        self.layers = nn.Sequential(
            OrderedDict(
                (f"encoder_layer_{index}", EncoderBlock(settings))
                for index in range(settings.layers)
            )
        )
        self.ln = nn.Identity() if settings.final_norm == "none" else norm()

    def blocks(self) -> list[EncoderBlock]:
        return [layer for layer in self.layers if isinstance(layer, EncoderBlock)]


class VisionTransformer(nn.Module):
    """A Vision Transformer without a head (Dosovitskiy et al., ICLR 2021), with new weights.

    `stem_norm` follows each convolution of a convolutional stem. A stored backbone has none:
    pretraining folds batch normalisation into the convolutions.
    """

    def __init__(
        self, settings: BackboneSettings, stem_norm: type[nn.Module] | None = None
    ) -> None:
        super().__init__()
        self.settings = settings
        self.conv_proj = _stem(settings, stem_norm)
        self.class_token = nn.Parameter(torch.zeros(1, 1, settings.width))
        if settings.registers:
            self.register_tokens = nn.Parameter(torch.empty(1, settings.registers, settings.width))
            _draw_normal(self.register_tokens, std=0.02)
        self.encoder = _Encoder(settings)

    def forward(self, images: Tensor) -> Tensor:
        """Features (n, width) of images (n, 3, image_size, image_size)."""
        return self.pooled(self.encoder.layers(self.tokens(self.patches(images))))

    def patches(self, images: Tensor) -> Tensor:
        """Embeddings of the patches without positions, (n, patches, width)."""
        patches: Tensor = self.conv_proj(images).flatten(2).transpose(1, 2)
        return patches

    def tokens(self, patches: Tensor) -> Tensor:
        """Input of the first block, (n, tokens, width): class token, registers and patches.

        Registers have no position.
        """
        class_token = self.class_token.expand(patches.shape[0], -1, -1)
        tokens = torch.cat([class_token, patches], dim=1)
        if self.settings.positions != "rotary":
            tokens = tokens + self.encoder.pos_embedding
        if self.settings.registers:
            registers = self.register_tokens.expand(patches.shape[0], -1, -1)
            tokens = torch.cat([tokens[:, :1], registers, tokens[:, 1:]], dim=1)
        output: Tensor = self.encoder.ln_pre(tokens)
        return output

    def pooled(self, tokens: Tensor) -> Tensor:
        """Features (n, width) from the output of the last block.

        `tokens`: (n, tokens, width); with `pooling=class`, the class token alone is enough.
        """
        pooled: Tensor
        if self.settings.pooling == "class":
            pooled = self.encoder.ln(tokens[:, 0])
        elif self.settings.final_norm == "pooled":
            pooled = self.encoder.ln(self.patch_tokens(tokens).mean(dim=1))
        else:
            pooled = self.encoder.ln(self.patch_tokens(tokens)).mean(dim=1)
        return pooled

    def patch_tokens(self, tokens: Tensor) -> Tensor:
        return tokens[:, 1 + self.settings.registers :]


def _stem(settings: BackboneSettings, norm: type[nn.Module] | None) -> nn.Module:
    """The patch embedding; names and initialisation of its layers are torchvision's."""
    width, patch_size = settings.width, settings.patch_size
    if settings.stem == "patch":
        embedding = nn.Conv2d(3, width, patch_size, patch_size)
        if not embedding.weight.is_meta:  # torch 2.11 would import its compiler
            nn.init.trunc_normal_(embedding.weight, std=math.sqrt(1 / (3 * patch_size**2)))
        nn.init.zeros_(embedding.bias)  # type: ignore[arg-type]  # it has one
        return embedding
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = 3
    for index, out_channels in enumerate(settings.stem_channels):
        halving = nn.Conv2d(channels, out_channels, 3, 2, padding=1, bias=norm is None)
        norms = [] if norm is None else [norm(out_channels)]
        layers[f"conv_bn_relu_{index}"] = nn.Sequential(halving, *norms, nn.ReLU(inplace=True))
        channels = out_channels
    last = nn.Conv2d(channels, width, 1)
    _draw_normal(last.weight, std=math.sqrt(2 / width))
    nn.init.zeros_(last.bias)  # type: ignore[arg-type]  # it has one
    layers["conv_last"] = last
    return nn.Sequential(layers)


def _draw_normal(parameter: Tensor, std: float) -> None:
    """Draws a normal parameter, but not on the device `meta`, which has no values: there, torch's
    `normal_` imports its compiler, which takes seconds."""
    if not parameter.is_meta:
        nn.init.normal_(parameter, std=std)

"""Vision Transformers of other libraries: the names of their tensors, and their shape.

transformers: ViT, DINOv2, DINOv3 and CLIP's vision tower. `config.json` names the architecture as
`model_type`; weights have the names of its version 4, which version 5 writes too.
timm: alone or as the trunk of an open_clip model, such as BiomedCLIP. Its configuration names an
architecture instead of all its options; the tensors have most of them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from eulerlora.checkpoint.weights import with_weights
from eulerlora.nn.backbone import POSITIONS, VisionTransformer
from eulerlora.settings import Activation, BackboneSettings
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.settings import validated

Json = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """The names of the modules and parameters of a Vision Transformer.

    Attributes:
        positions: Empty for a model with rotary positions.
        block: Prefix of a block, with its index as {}; the names from norm_1 to scale_2 follow it.
        qkv: Separate projections, or one packed projection.
        mlp: The first layer, in one or two parts, and the last.
        ignored: Prefixes of tensors that the features do not need.
    """

    class_token: str
    positions: str
    patches: str
    block: str
    norm_1: str
    qkv: tuple[str, ...]
    output: str
    norm_2: str
    mlp: tuple[str, ...]
    final_norm: str
    registers: str = ""
    pre_norm: str = ""
    scale_1: str = ""
    scale_2: str = ""
    ignored: tuple[str, ...] = ()


class _Reader:
    """Takes tensors out of a library's state dict, by the names of a layout.

    Its methods raise SettingsError if a tensor is missing or has another shape.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._left = dict(tensors)

    def take(self, name: str) -> Tensor:
        if name not in self._left:
            raise SettingsError(f"expected a tensor {name}, got none")
        return self._left.pop(name)

    def linear(self, name: str) -> dict[str, Tensor]:
        """Takes weight and bias of a module; a missing bias is zero."""
        weight = self.take(f"{name}.weight")
        bias = self._left.pop(f"{name}.bias", None)
        return {"weight": weight, "bias": torch.zeros(len(weight)) if bias is None else bias}

    def check_empty(self, ignored: tuple[str, ...]) -> None:
        for name in self._left:
            if not name.startswith(ignored):
                raise SettingsError(
                    f"unknown tensor {name}: the features of this model are not those of its "
                    "architecture"
                )


def _converted(
    tensors: Mapping[str, Tensor], layout: Layout, settings: BackboneSettings
) -> dict[str, Tensor]:
    """The parameters of a backbone of this shape.

    Raises:
        SettingsError: For missing, further or misshapen tensors.
    """
    reader = _Reader(tensors)
    state = {
        "class_token": reader.take(layout.class_token).view(1, 1, -1),
        **_named("conv_proj", reader.linear(layout.patches)),
    }
    if settings.registers:
        state["register_tokens"] = reader.take(layout.registers).view(1, settings.registers, -1)
    if layout.positions:
        positions = reader.take(layout.positions)
        positions = positions.view(1, *positions.shape[-2:])
        if settings.registers and positions.shape[1] == settings.tokens:  # they have positions
            first = 1 + settings.registers
            state["register_tokens"] = state["register_tokens"] + positions[:, 1:first]
            positions = torch.cat([positions[:, :1], positions[:, first:]], dim=1)
        if positions.shape[1] == settings.tokens - settings.registers - 1:  # of patches only
            positions = torch.cat([torch.zeros_like(positions[:, :1]), positions], dim=1)
        state[POSITIONS] = positions
    if settings.pre_norm:
        state |= _named("encoder.ln_pre", reader.linear(layout.pre_norm))
    for index in range(settings.layers):
        block = _block(reader, layout, layout.block.format(index), settings)
        state |= _named(f"encoder.layers.encoder_layer_{index}", block)
    if settings.final_norm != "none":
        state |= _named("encoder.ln", reader.linear(layout.final_norm))
    reader.check_empty(layout.ignored)
    return state


def _block(
    reader: _Reader, layout: Layout, prefix: str, settings: BackboneSettings
) -> dict[str, Tensor]:
    projections = [reader.linear(prefix + name) for name in layout.qkv]
    *first, last = (reader.linear(prefix + name) for name in layout.mlp)
    names = ("weights_in", "weights_out") if settings.activation == "swiglu" else ("0", "3")
    block = {
        **{
            f"self_attention.in_proj_{kind}": torch.cat([part[kind] for part in projections])
            for kind in ("weight", "bias")
        },
        **_named("self_attention.out_proj", reader.linear(prefix + layout.output)),
        **_named("ln_1", reader.linear(prefix + layout.norm_1)),
        **_named("ln_2", reader.linear(prefix + layout.norm_2)),
        **{
            f"mlp.{names[0]}.{kind}": torch.cat([part[kind] for part in first])
            for kind in ("weight", "bias")
        },
        **_named(f"mlp.{names[1]}", last),
    }
    if settings.layer_scale:
        block["scale_1.weight"] = reader.take(prefix + layout.scale_1)
        block["scale_2.weight"] = reader.take(prefix + layout.scale_2)
    return block


def _named(prefix: str, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in parts.items()}


TRANSFORMERS_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "quick_gelu": "quick-gelu",
}
_ATTENTION = tuple(f"attention.attention.{name}" for name in ("query", "key", "value"))
_IGNORED_TENSORS = ("classifier.", "pooler.", "embeddings.mask_token", "decoder.", "logit_scale")
_VIT = Layout(
    class_token="embeddings.cls_token",
    positions="embeddings.position_embeddings",
    patches="embeddings.patch_embeddings.projection",
    block="encoder.layer.{}.",
    norm_1="layernorm_before",
    qkv=_ATTENTION,
    output="attention.output.dense",
    norm_2="layernorm_after",
    mlp=("intermediate.dense", "output.dense"),
    final_norm="layernorm",
    ignored=_IGNORED_TENSORS,
)


def vit_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names the parameters of a backbone as transformers saves its ViT."""
    named = {
        _VIT.class_token: state["class_token"],
        _VIT.positions: state[POSITIONS],
        **_module(_VIT.patches, "conv_proj", state),
        **_module(_VIT.final_norm, "encoder.ln", state),
    }
    layers = {name.split(".")[2] for name in state if name.startswith("encoder.layers.")}
    for index in range(len(layers)):
        ours, theirs = f"encoder.layers.encoder_layer_{index}.", _VIT.block.format(index)
        weights = state[f"{ours}self_attention.in_proj_weight"].chunk(3)
        biases = state[f"{ours}self_attention.in_proj_bias"].chunk(3)
        for name, weight, bias in zip(_VIT.qkv, weights, biases, strict=True):
            named |= {f"{theirs}{name}.weight": weight, f"{theirs}{name}.bias": bias}
        for name, own in (
            (_VIT.output, "self_attention.out_proj"),
            (_VIT.norm_1, "ln_1"),
            (_VIT.norm_2, "ln_2"),
            (_VIT.mlp[0], "mlp.0"),
            (_VIT.mlp[1], "mlp.3"),
        ):
            named |= _module(theirs + name, ours + own, state)
    return named


def _module(theirs: str, ours: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{theirs}.{part}": state[f"{ours}.{part}"] for part in ("weight", "bias")}


DINOV2 = replace(
    _VIT,
    registers="embeddings.register_tokens",
    norm_1="norm1",
    norm_2="norm2",
    mlp=("mlp.fc1", "mlp.fc2"),
    scale_1="layer_scale1.lambda1",
    scale_2="layer_scale2.lambda1",
)
_DINOV3 = replace(
    DINOV2,
    positions="",
    patches="embeddings.patch_embeddings",
    block="layer.{}.",
    qkv=tuple(f"attention.{name}_proj" for name in "qkv"),
    output="attention.o_proj",
    mlp=("mlp.up_proj", "mlp.down_proj"),
    final_norm="norm",
)
_DINOV3_GATED = replace(_DINOV3, mlp=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"))
_DINOV2_GATED = replace(DINOV2, mlp=("mlp.weights_in", "mlp.weights_out"))
CLIP = Layout(
    class_token="embeddings.class_embedding",
    positions="embeddings.position_embedding.weight",
    patches="embeddings.patch_embedding",
    pre_norm="pre_layrnorm",
    block="encoder.layers.{}.",
    norm_1="layer_norm1",
    qkv=tuple(f"self_attn.{name}_proj" for name in "qkv"),
    output="self_attn.out_proj",
    norm_2="layer_norm2",
    mlp=("mlp.fc1", "mlp.fc2"),
    final_norm="post_layernorm",
    ignored=(
        "embeddings.position_ids", "text_model.", "visual_projection.", "text_projection.",
        "logit_scale", "classifier.",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Described:
    """A model of another library: its architecture, shape, tensors and their layout."""

    architecture: str
    settings: BackboneSettings
    tensors: Mapping[str, Tensor]
    layout: Layout


def _vit(config: Json, tensors: Mapping[str, Tensor]) -> Described:
    settings = _settings(config, {"norm_epsilon": config.get("layer_norm_eps", 1e-12)})
    return Described("vit", settings, _without_prefix(tensors, "vit."), _VIT)


def _dinov2(config: Json, tensors: Mapping[str, Tensor]) -> Described:
    architecture = config["model_type"]
    width, ratio = config.get("hidden_size", 768), config.get("mlp_ratio", 4)
    gated = config.get("use_swiglu_ffn", False)
    mlp_width = int(width * ratio)
    registers = config.get("num_register_tokens", 4) if architecture != "dinov2" else 0
    options = {
        "mlp_width": (int(mlp_width * 2 / 3) + 7) // 8 * 8 if gated else mlp_width,
        "patch_size": config.get("patch_size", 14 if architecture == "dinov2" else 16),
        "norm_epsilon": config.get("layer_norm_eps", 1e-6),
        "layer_scale": True,
        "registers": registers,
        "positions": "cells-antialias" if registers else "cells",
    }
    settings = _settings(config, options | ({"activation": "swiglu"} if gated else {}))
    layout = _DINOV2_GATED if gated else DINOV2
    return Described(architecture, settings, _without_prefix(tensors, f"{architecture}."), layout)


def _dinov3(config: Json, tensors: Mapping[str, Tensor]) -> Described:
    base, gated = config.get("rope_theta", 100.0), config.get("use_gated_mlp", False)
    if base != 100:
        raise SettingsError(f"expected rope_theta=100, got {base}")
    activation, expected = config.get("hidden_act", "gelu"), "silu" if gated else "gelu"
    if activation != expected:
        raise SettingsError(
            f"expected hidden_act={expected} with use_gated_mlp={gated}, got {activation}"
        )
    options = {
        "mlp_width": config.get("intermediate_size", 1536),
        "norm_epsilon": config.get("layer_norm_eps", 1e-5),
        "layer_scale": True,
        "registers": config.get("num_register_tokens", 0),
        "positions": "rotary",
        "activation": "swiglu" if gated else "gelu",
    }
    defaults = {"hidden_size": 384, "num_attention_heads": 6}
    settings = _settings(defaults | config | {"hidden_act": "gelu"}, options)
    layout = _DINOV3_GATED if gated else _DINOV3
    stored = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    return Described("dinov3_vit", settings, _without_prefix(stored, "model."), layout)


def _clip(config: Json, tensors: Mapping[str, Tensor]) -> Described:
    vision = config.get("vision_config", config)
    options = {
        "patch_size": vision.get("patch_size", 32),
        "norm_epsilon": vision.get("layer_norm_eps", 1e-5),
        "pre_norm": True,
    }
    settings = _settings({"hidden_act": "quick_gelu"} | vision, options)
    return Described(
        config["model_type"], settings, _without_prefix(tensors, "vision_model."), CLIP
    )


TRANSFORMERS_MODELS: dict[str, Callable[[Json, Mapping[str, Tensor]], Described]] = {
    "vit": _vit,
    "dinov2": _dinov2,
    "dinov2_with_registers": _dinov2,
    "dinov3_vit": _dinov3,
    "clip": _clip,
    "clip_vision_model": _clip,
}
"""Describes the model of a `config.json` by its `model_type`. Raises SettingsError."""


def _settings(config: Json, options: Json) -> BackboneSettings:
    activation = config.get("hidden_act", "gelu")
    if activation not in TRANSFORMERS_ACTIVATIONS:
        raise SettingsError(
            f"expected hidden_act among {', '.join(TRANSFORMERS_ACTIVATIONS)}, got {activation}"
        )
    if config.get("num_channels", 3) != 3:
        raise SettingsError(f"expected num_channels=3, got {config['num_channels']}")
    defaults = {
        "image_size": _side(config.get("image_size", 224)),
        "patch_size": _side(config.get("patch_size", 16)),
        "layers": config.get("num_hidden_layers", 12),
        "heads": config.get("num_attention_heads", 12),
        "width": config.get("hidden_size", 768),
        "mlp_width": config.get("intermediate_size", 3072),
        "activation": TRANSFORMERS_ACTIVATIONS[activation],
        "positions": "cells",
    }
    return validated(BackboneSettings, defaults | options)


def _side(size: object) -> object:
    if isinstance(size, list | tuple) and len(set(size)) == 1:
        return size[0]
    return size


def _without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


_TIMM = Layout(
    class_token="cls_token",
    positions="pos_embed",
    patches="patch_embed.proj",
    registers="reg_token",
    pre_norm="norm_pre",
    block="blocks.{}.",
    norm_1="norm1",
    qkv=("attn.qkv",),
    output="attn.proj",
    norm_2="norm2",
    mlp=("mlp.fc1", "mlp.fc2"),
    scale_1="ls1.gamma",
    scale_2="ls2.gamma",
    final_norm="norm",
    ignored=("head.", "mask_token"),
)
_TIMM_MEAN_POOLED = replace(_TIMM, final_norm="fc_norm")
HEAD_WIDTH = 64
"""Of every published DINOv2 and of most of timm's models: the files state no number of heads."""
_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}
"""Number of heads by width, for timm's models with heads of another width than 64."""


_UNSUPPORTED: Mapping[str, tuple[str, ...]] = {
    "relative positions": ("relative_position", "rel_pos"),
    "rotary positions": ("rope",),
    "attention pooling": ("attn_pool.", "head.probe"),
}
"""What a backbone does not have, by parts of the names of tensors."""
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "no class token": ("cls_token", "class_token", "class_embedding"),
    "no position embeddings, as with rotary positions": (
        "pos_embed", "position_embedding", *_UNSUPPORTED["relative positions"], "rope",
    ),
}  # fmt: skip
"""What a model without tensors of these names has instead."""


def unsupported(tensors: Iterable[str]) -> str:
    """What the model with tensors of these names has and a backbone has not, or ""."""

    def named(parts: tuple[str, ...]) -> bool:
        return any(part in name for name in names for part in parts)

    names = list(tensors)
    found = [feature for feature, parts in _UNSUPPORTED.items() if named(parts)]
    return ", ".join(found + [feature for feature, parts in _NEEDED.items() if not named(parts)])


def is_timm(tensors: Mapping[str, Tensor]) -> bool:
    return {"patch_embed.proj.weight", "blocks.0.attn.qkv.weight"} <= tensors.keys()


def describe_timm(config: Json, tensors: Mapping[str, Tensor]) -> Described:
    """Describes a model of timm by its tensors and `config.json`.

    The keys `architecture`, `model_args` and `global_pool` are read; names and shapes of the
    tensors give the rest.

    Raises:
        SettingsError: For a model whose features a backbone cannot give.
    """
    arguments = config.get("model_args") or {}
    pooling = arguments.get("global_pool") or config.get("global_pool") or "token"
    if fault := unsupported(tensors):
        raise SettingsError(
            f"expected a model with a class token and position embeddings, got one with {fault}"
        )
    if pooling not in ("token", "avg"):
        raise SettingsError(f"expected global_pool token or avg, got {pooling}")
    shape = _timm_shape(config, tensors)
    if pooling == "avg":  # timm moves the norm behind the mean
        norm = "pooled" if "fc_norm.weight" in tensors else "tokens"
        shape |= {"pooling": "mean", "final_norm": norm}
    settings = validated(BackboneSettings, shape)
    layout = _TIMM_MEAN_POOLED if settings.final_norm == "pooled" else _TIMM
    return Described("timm", settings, tensors, layout)


def _timm_shape(config: Json, tensors: Mapping[str, Tensor]) -> Json:
    arguments = config.get("model_args") or {}
    width, _, patch_size, _ = tensors["patch_embed.proj.weight"].shape
    registers = tensors["reg_token"].shape[1] if "reg_token" in tensors else 0
    positions = tensors["pos_embed"].shape[1]
    counts = (positions, positions - 1, positions - 1 - registers)  # of the patches alone
    side = next((isqrt(count) for count in counts if count and isqrt(count) ** 2 == count), 0)
    if not side:
        raise SettingsError(
            "pos_embed: expected the positions of a square of patches and of a class token, "
            f"got {positions}"
        )
    reader = _Reader(tensors)
    wide, narrow = (reader.take(f"blocks.0.mlp.{name}.weight") for name in ("fc1", "fc2"))
    name = str(arguments.get("act_layer") or config.get("architecture", ""))
    quick = "quickgelu" in name.replace("_", "")
    gated = wide.shape[0] == 2 * narrow.shape[1]
    pre_norm = "norm_pre.weight" in tensors
    return {
        "image_size": side * patch_size,
        "patch_size": patch_size,
        "layers": len({name.split(".")[1] for name in tensors if name.startswith("blocks.")}),
        "heads": arguments.get("num_heads") or _HEADS.get(width, max(1, width // HEAD_WIDTH)),
        "width": width,
        "mlp_width": narrow.shape[1],
        "activation": "swiglu" if gated else "quick-gelu" if quick else "gelu",
        "norm_epsilon": 1e-5 if pre_norm else 1e-6,
        "pre_norm": pre_norm,
        "layer_scale": "blocks.0.ls1.gamma" in tensors,
        "registers": registers,
        "positions": "cells-antialias",
    }


def backbone_of(model: Described) -> VisionTransformer:
    """The backbone with the tensors of a model.

    Raises:
        SettingsError: For one of another shape.
    """
    state = _converted(model.tensors, model.layout, model.settings)
    with torch.device("meta"):  # only the shapes matter
        expected = VisionTransformer(model.settings).state_dict()
    for name, tensor in state.items():
        if name not in expected or tensor.shape != expected[name].shape:
            wanted = tuple(expected[name].shape) if name in expected else "none"
            raise SettingsError(f"{name}: expected shape {wanted}, got {tuple(tensor.shape)}")
    return with_weights(model.settings, state)

"""Vision Transformers that the transformers library saves: ViT, DINOv2 and CLIP's vision tower.

`config.json` names the architecture as `model_type`; weights have the names of its version 4, which
version 5 writes too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from eulerlora.backbones.layout import Layout
from eulerlora.backbones.source import Json
from eulerlora.errors import SettingsError
from eulerlora.settings import Activation, BackboneSettings
from eulerlora.validation import validated

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "quick_gelu": "quick-gelu",
}
ATTENTION = tuple(f"attention.attention.{name}" for name in ("query", "key", "value"))
HEADS = ("classifier.", "pooler.", "embeddings.mask_token", "decoder.", "logit_scale")

VIT = Layout(
    class_token="embeddings.cls_token",
    positions="embeddings.position_embeddings",
    patches="embeddings.patch_embeddings.projection",
    block="encoder.layer.{}.",
    norm_1="layernorm_before",
    qkv=ATTENTION,
    output="attention.output.dense",
    norm_2="layernorm_after",
    mlp=("intermediate.dense", "output.dense"),
    final_norm="layernorm",
    ignored=HEADS,
)
DINOV2 = Layout(
    class_token="embeddings.cls_token",
    positions="embeddings.position_embeddings",
    patches="embeddings.patch_embeddings.projection",
    registers="embeddings.register_tokens",
    block="encoder.layer.{}.",
    norm_1="norm1",
    qkv=ATTENTION,
    output="attention.output.dense",
    norm_2="norm2",
    mlp=("mlp.fc1", "mlp.fc2"),
    scale_1="layer_scale1.lambda1",
    scale_2="layer_scale2.lambda1",
    final_norm="layernorm",
    ignored=HEADS,
)
DINOV2_GATED = Layout(**(vars(DINOV2) | {"mlp": ("mlp.weights_in", "mlp.weights_out")}))
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


def describe(config: Json, tensors: Mapping[str, Tensor]) -> Described:
    """Returns the model of a `config.json` whose `model_type` is in `MODELS`.

    Raises SettingsError for an option that the backbone does not have.
    """
    architecture = config["model_type"]
    return MODELS[architecture](config, tensors)


def _vit(config: Json, tensors: Mapping[str, Tensor]) -> Described:
    settings = _settings(config, {"norm_epsilon": config.get("layer_norm_eps", 1e-12)})
    return Described("vit", settings, _without_prefix(tensors, "vit."), VIT)


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
    layout = DINOV2_GATED if gated else DINOV2
    return Described(architecture, settings, _without_prefix(tensors, f"{architecture}."), layout)


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


MODELS: dict[str, Callable[[Json, Mapping[str, Tensor]], Described]] = {
    "vit": _vit,
    "dinov2": _dinov2,
    "dinov2_with_registers": _dinov2,
    "clip": _clip,
    "clip_vision_model": _clip,
}
"""Known values of `model_type`."""


def _settings(config: Json, options: Json) -> BackboneSettings:
    """Returns the shape of a model. options: replace the values of the config."""
    activation = config.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise SettingsError(f"expected hidden_act among {', '.join(ACTIVATIONS)}, got {activation}")
    if config.get("num_channels", 3) != 3:
        raise SettingsError(f"expected num_channels=3, got {config['num_channels']}")
    defaults = {
        "image_size": _side(config.get("image_size", 224)),
        "patch_size": _side(config.get("patch_size", 16)),
        "layers": config.get("num_hidden_layers", 12),
        "heads": config.get("num_attention_heads", 12),
        "width": config.get("hidden_size", 768),
        "mlp_width": config.get("intermediate_size", 3072),
        "activation": ACTIVATIONS[activation],
        "positions": "cells",
    }
    return validated(BackboneSettings, defaults | options)


def _side(size: object) -> object:
    """Returns the side of a square that may be given as height and width."""
    if isinstance(size, list | tuple) and len(set(size)) == 1:
        return size[0]
    return size


def _without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}

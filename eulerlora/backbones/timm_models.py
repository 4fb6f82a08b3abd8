"""Vision Transformers in the layout of timm, alone or as the trunk of an open_clip model.

timm's configuration names an architecture instead of all its options; the tensors have most of
them. BiomedCLIP is an open_clip model with a timm trunk.
"""

from collections.abc import Mapping
from math import isqrt

from torch import Tensor

from eulerlora.backbones.layout import Layout
from eulerlora.backbones.source import Json
from eulerlora.backbones.transformers_models import Described
from eulerlora.errors import SettingsError
from eulerlora.settings import BackboneSettings
from eulerlora.validation import validated

LAYOUT = Layout(
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
MEAN_POOLED = Layout(**(vars(LAYOUT) | {"final_norm": "fc_norm"}))
TRUNK = "visual.trunk."
HEAD_WIDTH = 64
HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}
"""Number of heads by width, for timm's models with heads of another width than 64."""


def is_timm(tensors: Mapping[str, Tensor]) -> bool:
    """Returns True for the tensors of timm's Vision Transformer."""
    return {"patch_embed.proj.weight", "blocks.0.attn.qkv.weight"} <= tensors.keys()


def trunk(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of the vision trunk of an open_clip model, without its projection."""
    return {
        name.removeprefix(TRUNK): tensor
        for name, tensor in tensors.items()
        if name.startswith(TRUNK)
    }


def describe(config: Json, tensors: Mapping[str, Tensor]) -> Described:
    """Returns a model of timm from its tensors and `config.json`.

    config: the keys `architecture`, `model_args` and `global_pool` are read. Raises SettingsError
    for a model without a class token, with attention pooling, or with an unknown tensor.
    """
    arguments = config.get("model_args") or {}
    pooling = arguments.get("global_pool") or config.get("global_pool") or "token"
    if "cls_token" not in tensors:
        raise SettingsError("expected a model with a class token, got none (no cls_token)")
    if pooling not in ("token", "avg"):
        raise SettingsError(f"expected global_pool token or avg, got {pooling}")
    settings = validated(BackboneSettings, _shape(config, tensors) | _pooling(pooling, tensors))
    layout = MEAN_POOLED if settings.final_norm == "pooled" else LAYOUT
    return Described("timm", settings, tensors, layout)


def _shape(config: Json, tensors: Mapping[str, Tensor]) -> Json:
    arguments = config.get("model_args") or {}
    width, _, patch_size, _ = tensors["patch_embed.proj.weight"].shape
    registers = tensors["reg_token"].shape[1] if "reg_token" in tensors else 0
    positions = tensors["pos_embed"].shape[1]
    side = next(
        (isqrt(count) for count in (positions, positions - 1, positions - 1 - registers)
         if isqrt(count) ** 2 == count), 0
    )  # fmt: skip
    wide, narrow = (tensors[f"blocks.0.mlp.{name}.weight"] for name in ("fc1", "fc2"))
    name = str(arguments.get("act_layer") or config.get("architecture", ""))
    quick = "quickgelu" in name.replace("_", "")
    gated = wide.shape[0] == 2 * narrow.shape[1]
    pre_norm = "norm_pre.weight" in tensors
    return {
        "image_size": side * patch_size,
        "patch_size": patch_size,
        "layers": len({name.split(".")[1] for name in tensors if name.startswith("blocks.")}),
        "heads": arguments.get("num_heads") or HEADS.get(width, max(1, width // HEAD_WIDTH)),
        "width": width,
        "mlp_width": narrow.shape[1],
        "activation": "swiglu" if gated else "quick-gelu" if quick else "gelu",
        "norm_epsilon": 1e-5 if pre_norm else 1e-6,
        "pre_norm": pre_norm,
        "layer_scale": "blocks.0.ls1.gamma" in tensors,
        "registers": registers,
        "positions": "cells-antialias",
    }


def _pooling(pooling: str, tensors: Mapping[str, Tensor]) -> Json:
    """Returns the options of the pooling: timm moves the norm after a mean."""
    if pooling == "token":
        return {}
    return {"pooling": "mean", "final_norm": "pooled" if "fc_norm.weight" in tensors else "tokens"}

"""LoRA adapters in PEFT's folders: their names, by version of transformers, and their tensors."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from eulerlora.backbones.source import Json, Source, read_any_tensors
from eulerlora.errors import CheckpointError, SettingsError
from eulerlora.settings import BackboneSettings

TransformersVersion = Literal[4, 5]
PREFIX = "base_model.model."
LORA = ("lora_A.weight", "lora_B.weight")

VIT_BLOCKS: dict[TransformersVersion, str] = {4: "vit.encoder.layer.{}.", 5: "vit.layers.{}."}
VIT_PROJECTIONS: dict[TransformersVersion, tuple[str, ...]] = {
    4: (
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
        "attention.output.dense",
    ),
    5: ("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj"),
}
"""Q, K, V and O of a block."""
CLIP_PROJECTIONS = tuple(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out"))
PROJECTIONS = (*VIT_PROJECTIONS.values(), CLIP_PROJECTIONS)
TARGETS: dict[TransformersVersion, tuple[str, ...]] = {
    4: ("query", "key", "value", "attention.output.dense"),
    5: ("q_proj", "k_proj", "v_proj", "o_proj"),
}
"""PEFT's `target_modules`, which are suffixes of the names of modules."""

MODULE = re.compile(r"(?:^|\.)layers?\.(\d+)\.(.+)$")


CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
TENSOR = re.compile(r"^(.*)\.lora_([AB])(?:\.default)?\.weight$")
HEAD = re.compile(r"^classifier(?:\.modules_to_save(?:\.default)?)?\.(weight|bias)$")
UNSUPPORTED: Json = {"use_dora": False, "bias": "none", "fan_in_fan_out": False, "lora_bias": False}
"""Options of PEFT, with the only value that coefficients can express."""


@dataclass(frozen=True)
class Projection:
    """block: its index. index: 0 to 3 for Q, K, V and O."""

    block: int
    index: int


def projection_of(module: str) -> Projection | None:
    """Returns the projection that a module's name means, None for any other module."""
    found = MODULE.search(module)
    if found is None:
        return None
    for names in PROJECTIONS:
        if found[2] in names:
            return Projection(int(found[1]), names.index(found[2]))
    return None


@dataclass(frozen=True)
class ImportedAdapter:
    """The adapter of a PEFT folder, with PEFT's scaling in `up`.

    down, up: (blocks, 4, rank, width); zero where there is no adapter. head_weight, head_bias:
    None if the folder has no head.
    """

    folder: Path
    base: str
    down: Tensor
    up: Tensor
    head_weight: Tensor | None
    head_bias: Tensor | None

    @property
    def rank(self) -> int:
        """The largest rank of the adapter's modules."""
        return int(self.down.shape[2])


def read_adapter(folder: Path, shape: BackboneSettings) -> ImportedAdapter:
    """Returns the adapter in a PEFT folder. shape: of its backbone.

    Raises CheckpointError, with the folder, for a damaged file, another method than LoRA, or an
    adapter at another module than the four projections.
    """
    config = adapter_config(folder)
    try:
        _check(config)
        return _adapter(folder, config, shape)
    except SettingsError as error:
        raise CheckpointError(folder, str(error)) from error


def adapter_config(folder: Path) -> Json:
    config = Source(folder, folder.name).json(CONFIG)
    if config is None:
        raise CheckpointError(folder, f"expected a PEFT folder with {CONFIG}, got none")
    return config


def _check(config: Json) -> None:
    """Raises SettingsError for a method or an option that coefficients cannot express."""
    if config.get("peft_type") != "LORA":
        raise SettingsError(f"expected peft_type LORA, got {config.get('peft_type')}")
    for option, value in UNSUPPORTED.items():
        if config.get(option, value) not in (value, None):
            raise SettingsError(f"expected {option}={value}, got {config[option]}")


def _adapter(folder: Path, config: Json, shape: BackboneSettings) -> ImportedAdapter:
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise SettingsError(f"expected weights in one of {', '.join(WEIGHTS)}")
    matrices: dict[tuple[str, str], Tensor] = {}
    head: dict[str, Tensor] = {}
    for full_name, tensor in read_any_tensors(path).items():
        name = full_name.removeprefix(PREFIX)
        if (lora := TENSOR.match(name)) is not None:
            matrices[lora[1], lora[2]] = tensor.float()
        elif (part := HEAD.match(name)) is not None:
            head[part[1]] = tensor.float()
        else:
            raise SettingsError(f"expected LoRA matrices and a classifier, got {full_name}")
    down, up = _stacked(matrices, config, shape)
    weight = head.get("weight")
    bias = None if weight is None else head.get("bias", torch.zeros(len(weight)))
    base = str(config.get("base_model_name_or_path") or "")
    return ImportedAdapter(folder, base, down, up, weight, bias)


def _stacked(
    matrices: dict[tuple[str, str], Tensor], config: Json, shape: BackboneSettings
) -> tuple[Tensor, Tensor]:
    """Returns (blocks, 4, rank, width) of both matrices; smaller ranks are padded with zeros."""
    modules = sorted({module for module, _ in matrices})
    if not modules:
        raise SettingsError("expected LoRA matrices, got none")
    rank = max(len(matrix) for (_, letter), matrix in matrices.items() if letter == "A")
    down = torch.zeros(shape.layers, 4, rank, shape.width)
    up = torch.zeros_like(down)
    for module in modules:
        projection = projection_of(module)
        if projection is None or projection.block >= shape.layers:
            raise SettingsError(
                f"expected adapters at the query, key, value and output projections of "
                f"{shape.layers} blocks, got {module}"
            )
        first, second = matrices.get((module, "A")), matrices.get((module, "B"))
        if first is None or second is None:
            raise SettingsError(f"{module}: expected both LoRA matrices, got one")
        own = len(first)
        if first.shape != (own, shape.width) or second.shape != (shape.width, own):
            raise SettingsError(
                f"{module}: expected matrices ({own}, {shape.width}) and ({shape.width}, {own}), "
                f"got {tuple(first.shape)} and {tuple(second.shape)}"
            )
        down[projection.block, projection.index, :own] = first
        up[projection.block, projection.index, :own] = second.T * _scaling(config, module, own)
    return down, up


def _scaling(config: Json, module: str, rank: int) -> float:
    """Returns PEFT's factor of a module: alpha / rank, or alpha / sqrt(rank) with `use_rslora`."""
    alpha = float(config.get("lora_alpha", 8))
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if _matches(pattern, module):
            alpha = float(value)
            break
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _matches(pattern: str, module: str) -> bool:
    """Returns True if a key of `alpha_pattern`, a regular expression, means the module."""
    try:
        return re.match(rf"(?:.*\.)?(?:{pattern})$", module) is not None
    except re.error as error:
        raise SettingsError(
            f"alpha_pattern: expected a regular expression, got {pattern}"
        ) from error

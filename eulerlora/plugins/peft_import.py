"""Import of adapters in PEFT's folders, of a Vision Transformer, as the adapters of a checkpoint.

Those of LoRA and MonteCLoRA have no sampling; those of EulerLoRA (`eulerlora.peft`) keep their law.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.weights import finite, with_weights
from eulerlora.exchange.folders import (
    ImportedBackbone,
    WeightsSource,
    read_any_tensors,
    read_source,
    stated_preprocessing,
)
from eulerlora.exchange.importing import ImportedAdapters, find_source, import_adapters
from eulerlora.exchange.libraries import Json
from eulerlora.exchange.preprocessing import DEFAULT_IMAGE_SIZE
from eulerlora.plugins.peft_export import LAW, MODULE_PREFIX, SAMPLED_TYPE, VIT_PROJECTIONS
from eulerlora.sampling.masks import INPUT_PROJECTIONS, AdapterSettings
from eulerlora.settings import BackboneSettings, Preprocessing
from eulerlora_contract.errors import CheckpointError, SettingsError
from eulerlora_contract.settings import validated

_SAMPLER = ".lora_monteclora_sampler."
"""In the names of tensors that MonteCLoRA needs in training only."""

_CLIP_PROJECTIONS = tuple(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out"))
_KNOWN_PROJECTIONS = (*VIT_PROJECTIONS.values(), _CLIP_PROJECTIONS)

_MODULE = re.compile(r"(?:^|\.)layers?\.(\d+)\.(.+)$")


_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_NAME = re.compile(r"[\w.-]+")
_TENSOR = re.compile(r"^(.*)\.lora_([AB])(?:\.default)?\.weight$")
_HEAD = re.compile(r"^classifier(?:\.modules_to_save(?:\.default)?)?\.(weight|bias)$")
_EXPRESSIBLE: Mapping[str, Sequence[object]] = {
    "use_dora": (False,),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "lora_bias": (False,),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal", "mica"),
}
"""Options of PEFT, with the values that leave the base weights to be adapted by A and B alone.

PEFT changes the base weights on loading for other values of `init_lora_weights`, such as `pissa`.
"""


def _projection_of(module: str) -> tuple[int, int] | None:
    """The index of a block, and that of a projection in it: 0 to 3 for Q, K, V and O."""
    found = _MODULE.search(module)
    if found is None:
        return None
    for names in _KNOWN_PROJECTIONS:
        if found[2] in names:
            return int(found[1]), names.index(found[2])
    return None


@dataclass(frozen=True)
class _ImportedAdapter:
    """The adapter of a PEFT folder: (blocks, 4, rank, width), zero where it has none.

    PEFT's scaling is part of `up`. `law` is None without sampling, and the head without one in the
    folder.
    """

    folder: Path
    law: AdapterSettings | None
    down: Tensor
    up: Tensor
    head_weight: Tensor | None
    head_bias: Tensor | None

    @property
    def rank(self) -> int:
        return int(self.down.shape[2])


def _read_adapter(folder: Path, shape: BackboneSettings) -> _ImportedAdapter:
    try:
        return _adapter(folder, _adapter_config(folder), shape)
    except SettingsError as error:
        raise CheckpointError(folder, str(error)) from error


def _adapter_config(folder: Path) -> Json:
    config = WeightsSource(folder, folder.name).json(_ADAPTER_CONFIG)
    if config is None:
        raise CheckpointError(folder, f"expected a PEFT folder with {_ADAPTER_CONFIG}, got none")
    return config


def _adapter(folder: Path, config: Json, shape: BackboneSettings) -> _ImportedAdapter:
    if config.get("peft_type") not in ("LORA", SAMPLED_TYPE):
        raise SettingsError(
            f"expected peft_type LORA or {SAMPLED_TYPE}, got {config.get('peft_type')}"
        )
    for option, values in _EXPRESSIBLE.items():
        if config.get(option) not in (*values, None):
            expected = " or ".join(map(str, values))
            raise SettingsError(f"expected {option}={expected}, got {config[option]}")
    path = next((folder / name for name in _ADAPTER_WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise SettingsError(f"expected weights in one of {', '.join(_ADAPTER_WEIGHTS)}")
    matrices: dict[tuple[str, str], Tensor] = {}
    head: dict[str, Tensor] = {}
    for full_name, tensor in read_any_tensors(path).items():
        name = full_name.removeprefix(MODULE_PREFIX)
        if (lora := _TENSOR.match(name)) is not None:
            matrices[lora[1], lora[2]] = finite(path, full_name, tensor)
        elif (part := _HEAD.match(name)) is not None:
            head[part[1]] = finite(path, full_name, tensor)
        elif _SAMPLER not in name:
            raise SettingsError(f"expected LoRA matrices and a classifier, got {full_name}")
    down, up = _stacked(matrices, config, shape)
    weight = head.get("weight")
    bias = None if weight is None else head.get("bias", torch.zeros(len(weight)))
    if weight is not None and bias is not None and bias.shape != weight.shape[:1]:
        raise SettingsError(
            f"classifier: expected a bias for each of {len(weight)} classes, got {len(bias)}"
        )
    return _ImportedAdapter(folder, _law(config, matrices), down, up, weight, bias)


def _law(config: Json, matrices: Mapping[tuple[str, str], Tensor]) -> AdapterSettings | None:
    if config["peft_type"] != SAMPLED_TYPE:
        return None
    ranks = {len(matrix) for (_, letter), matrix in matrices.items() if letter == "A"}
    if len(ranks) != 1:
        raise SettingsError(f"expected one rank for all modules, got {sorted(ranks)}")
    (rank,) = ranks
    for module, _ in matrices:
        projection = _projection_of(module)
        expected = "output" if projection and projection[1] == INPUT_PROJECTIONS else "input"
        for pattern, role in (config.get("roles") or {}).items():
            if _matches(pattern, module) and role != expected:
                raise SettingsError(f"roles: expected {expected} for {module}, got {role}")
    given = {name: config[name] for name in LAW if config.get(name) is not None}
    return validated(AdapterSettings, {"adapters": 1, "rank": rank} | given)


def _stacked(
    matrices: dict[tuple[str, str], Tensor], config: Json, shape: BackboneSettings
) -> tuple[Tensor, Tensor]:
    """Both matrices as (blocks, 4, rank, width); smaller ranks are padded with zeros."""
    modules = sorted({module for module, _ in matrices})
    if not modules:
        raise SettingsError("expected LoRA matrices, got none")
    rank = max(len(matrix) for (_, letter), matrix in matrices.items() if letter == "A")
    down = torch.zeros(shape.layers, 4, rank, shape.width)
    up = torch.zeros_like(down)
    for module in modules:
        projection = _projection_of(module)
        if projection is None or projection[0] >= shape.layers:
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
        down[projection][:own] = first
        up[projection][:own] = second.T * _scaling(config, module, own)
    return down, up


def _scaling(config: Json, module: str, rank: int) -> float:
    """PEFT's factor of a module: alpha / rank, or alpha / sqrt(rank) with `use_rslora`."""
    stated = config.get("lora_alpha")
    alpha = 8.0 if stated is None else float(stated)
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if _matches(pattern, module):
            alpha = float(value)
            break
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _matches(pattern: str, module: str) -> bool:
    """True if a key of `alpha_pattern` or `roles` is the end of a module's name.

    PEFT reads a key as a regular expression, but one of a foreign file could run without end.
    Points of a name may be escaped.
    """
    name = pattern.replace("\\.", ".")
    if _NAME.fullmatch(name) is None:
        raise SettingsError(
            f"alpha_pattern, roles: expected the end of a module's name, got {pattern[:80]!r}"
        )
    return module == name or module.endswith(f".{name}")


def import_peft(
    folders: Sequence[Path],
    out: Path,
    backbone: str | None = None,
    classes: Sequence[str] = (),
    name: str = "imported",
    preprocessing: Preprocessing | None = None,
) -> CheckpointConfig:
    """Writes a checkpoint with the adapters of PEFT folders as an ensemble; returns its config.

    The checkpoint has no thresholds. `backbone` is a source as in `find_source`, None for the one
    that the adapters name; `classes` are names, () for those of the backbone's configuration.
    `preprocessing` is that of the adapters' training; None for the one that their folders or the
    backbone's state.

    Raises:
        SettingsError: For adapters that no checkpoint can hold, and without preprocessing.
        CheckpointError: For an unreadable folder, and if `out` is not empty.
        HubError: If the backbone cannot be downloaded.
    """
    source = find_source(backbone) if backbone else _base(folders)
    prepared = preprocessing or _stated_beside(folders, source)
    imported = _with_features_of_head(read_source(source, preprocessing=prepared))
    if not imported.stated_input:
        raise SettingsError(
            "expected the preprocessing of the adapters' training, which neither their folders nor "
            "the backbone state; name it with --preprocessing"
        )
    shape = imported.backbone.settings
    adapters = [_read_adapter(folder, shape) for folder in folders]
    heads = [_head(adapter, source) for adapter in adapters]
    counts = {len(weight) for weight, _ in heads}
    if len(counts) != 1:
        raise SettingsError(f"expected heads of one number of classes, got {sorted(counts)}")
    (count,) = counts
    stated = (source.json("config.json") or {}).get("id2label") or {}
    names = list(classes) or [str(stated.get(str(i), f"class_{i}")) for i in range(count)]
    settings = _settings(adapters)
    ensemble = ImportedAdapters(
        settings,
        torch.stack([_padded(adapter.down, settings.rank) for adapter in adapters], dim=2),
        torch.stack([_padded(adapter.up, settings.rank) for adapter in adapters], dim=2),
        torch.stack([weight for weight, _ in heads]),
        torch.stack([bias for _, bias in heads]),
        "peft",
        [folder.name for folder in folders],
    )
    return import_adapters(
        ensemble, imported.backbone, imported.provenance, imported.preprocessing, names, name, out
    )


def _padded(matrices: Tensor, rank: int) -> Tensor:
    """Adds directions of zero to (blocks, 4, fewer, width)."""
    return F.pad(matrices, (0, 0, 0, rank - matrices.shape[2]))


def _stated_beside(folders: Sequence[Path], backbone: WeightsSource) -> Preprocessing | None:
    """What the adapters' folders state, as transformers' Trainer saves its image processor there.

    What they leave open is that of the backbone.
    """
    config = backbone.json("config.json") or {}
    size, kind = config.get("image_size", DEFAULT_IMAGE_SIZE), str(config.get("model_type", ""))
    stated = {
        stated_preprocessing(WeightsSource(folder, folder.name), size, kind) for folder in folders
    } - {None}
    if len(stated) > 1:
        raise SettingsError("expected adapters with one preprocessing, got several")
    return next(iter(stated), None)


def _settings(adapters: Sequence[_ImportedAdapter]) -> AdapterSettings:
    laws = {adapter.law for adapter in adapters}
    if len(laws) != 1:
        raise SettingsError("expected adapters of one rank and with one sampling law, got several")
    (law,) = laws
    if law is not None:
        return law.model_copy(update={"adapters": len(adapters)})
    rank = max(adapter.rank for adapter in adapters)
    return AdapterSettings(adapters=len(adapters), rank=rank, min_rank=rank)


def _base(folders: Sequence[Path]) -> WeightsSource:
    names = {
        str(_adapter_config(folder).get("base_model_name_or_path") or "") for folder in folders
    }
    if len(names) != 1 or "" in names:
        raise SettingsError(
            f"expected adapters of one backbone, got {', '.join(sorted(names)) or 'none'}; name "
            "it with --backbone"
        )
    (name,) = names
    beside = folders[0] / name
    return find_source(str(beside.resolve() if beside.is_dir() else name))


def _with_features_of_head(imported: ImportedBackbone) -> ImportedBackbone:
    """CLIP with the input of transformers' head, the mean of the patches without the last norm."""
    if not imported.architecture.startswith("clip"):
        return imported
    features = {"pooling": "mean", "final_norm": "none"}
    settings = imported.backbone.settings.model_copy(update=features)
    state = imported.backbone.state_dict()
    kept = {name: state[name] for name in state if not name.startswith("encoder.ln.")}
    return replace(imported, backbone=with_weights(settings, kept))


def _head(adapter: _ImportedAdapter, source: WeightsSource) -> tuple[Tensor, Tensor]:
    """Weight (classes, width) and bias of an adapter's head, or that of its backbone."""
    weight, bias = adapter.head_weight, adapter.head_bias
    if weight is None or bias is None:
        tensors = source.tensors
        if "classifier.weight" not in tensors:
            raise CheckpointError(
                adapter.folder, "expected a classifier in the adapter or its backbone, got none"
            )
        weight = tensors["classifier.weight"]
        bias = tensors.get("classifier.bias", torch.zeros(len(weight)))
    if weight.shape[1] != adapter.down.shape[3]:
        raise CheckpointError(
            adapter.folder,
            f"expected a classifier with {adapter.down.shape[3]} inputs, got {weight.shape[1]}",
        )
    return weight, bias

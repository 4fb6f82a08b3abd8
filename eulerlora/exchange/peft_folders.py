"""Adapters in PEFT's folders, in both directions.

Export writes the backbone as a ViT of transformers and a folder for each adapter: LoRA, which has
mode det, or EulerLoRA (`eulerlora.peft`). Import reads adapters of a Vision Transformer, those of
LoRA and MonteCLoRA without their sampling, as the adapters of a checkpoint.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import UNKNOWN_TRAINING, Checkpoint, config_of, save_checkpoint
from eulerlora.checkpoint.weights import CARD_FILE, write_tensors
from eulerlora.exchange.importing import (
    WeightsSource,
    find_source,
    read_any_tensors,
    read_source,
)
from eulerlora.exchange.libraries import TRANSFORMERS_ACTIVATIONS, Json, vit_state
from eulerlora.exchange.merged import (
    Member,
    check_format,
    members,
    readme,
    scaled_output,
    without_layer_scale,
)
from eulerlora.methods.registry import DEFAULT_METHOD, build_network
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.sampling.masks import INPUT_PROJECTIONS, AdapterSettings
from eulerlora.settings import BackboneSettings
from eulerlora_client.errors import CheckpointError, SettingsError
from eulerlora_client.settings import validated

TransformersVersion = Literal[4, 5]
MODULE_PREFIX = "base_model.model."
LORA = ("lora_A.weight", "lora_B.weight")
SAMPLED_TYPE = "EULERLORA"
LAW = ("min_rank", "steps", "scale")
"""Settings of `AdapterSettings` that a folder of `eulerlora.peft` has too."""
SAMPLER = ".lora_monteclora_sampler."
"""In the names of tensors that MonteCLoRA needs in training only."""

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
KNOWN_PROJECTIONS = (*VIT_PROJECTIONS.values(), CLIP_PROJECTIONS)
TARGETS: dict[TransformersVersion, tuple[str, ...]] = {
    4: ("query", "key", "value", "attention.output.dense"),
    5: ("q_proj", "k_proj", "v_proj", "o_proj"),
}
"""PEFT's `target_modules`, which are suffixes of the names of modules."""

MODULE = re.compile(r"(?:^|\.)layers?\.(\d+)\.(.+)$")


ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
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
    for names in KNOWN_PROJECTIONS:
        if found[2] in names:
            return Projection(int(found[1]), names.index(found[2]))
    return None


@dataclass(frozen=True)
class ImportedAdapter:
    """The adapter of a PEFT folder, with PEFT's scaling in `up`.

    down, up: (blocks, 4, rank, width); zero where there is no adapter. law: how it is sampled, None
    if it is not. head_weight, head_bias: None if the folder has no head.
    """

    folder: Path
    base: str
    law: AdapterSettings | None
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

    Raises CheckpointError, with the folder, for a damaged file, another method than LoRA and
    EulerLoRA, or an adapter at another module than the four projections.
    """
    config = adapter_config(folder)
    try:
        _check(config)
        return _adapter(folder, config, shape)
    except SettingsError as error:
        raise CheckpointError(folder, str(error)) from error


def adapter_config(folder: Path) -> Json:
    config = WeightsSource(folder, folder.name).json(ADAPTER_CONFIG)
    if config is None:
        raise CheckpointError(folder, f"expected a PEFT folder with {ADAPTER_CONFIG}, got none")
    return config


def _check(config: Json) -> None:
    """Raises SettingsError for a method or an option that coefficients cannot express."""
    if config.get("peft_type") not in ("LORA", SAMPLED_TYPE):
        raise SettingsError(
            f"expected peft_type LORA or {SAMPLED_TYPE}, got {config.get('peft_type')}"
        )
    for option, value in UNSUPPORTED.items():
        if config.get(option, value) not in (value, None):
            raise SettingsError(f"expected {option}={value}, got {config[option]}")


def _adapter(folder: Path, config: Json, shape: BackboneSettings) -> ImportedAdapter:
    path = next((folder / name for name in ADAPTER_WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise SettingsError(f"expected weights in one of {', '.join(ADAPTER_WEIGHTS)}")
    matrices: dict[tuple[str, str], Tensor] = {}
    head: dict[str, Tensor] = {}
    for full_name, tensor in read_any_tensors(path).items():
        name = full_name.removeprefix(MODULE_PREFIX)
        if (lora := TENSOR.match(name)) is not None:
            matrices[lora[1], lora[2]] = tensor.float()
        elif (part := HEAD.match(name)) is not None:
            head[part[1]] = tensor.float()
        elif SAMPLER not in name:
            raise SettingsError(f"expected LoRA matrices and a classifier, got {full_name}")
    down, up = _stacked(matrices, config, shape)
    weight = head.get("weight")
    bias = None if weight is None else head.get("bias", torch.zeros(len(weight)))
    base = str(config.get("base_model_name_or_path") or "")
    law = _law(config, matrices)
    return ImportedAdapter(folder, base, law, down, up, weight, bias)


def _law(config: Json, matrices: Mapping[tuple[str, str], Tensor]) -> AdapterSettings | None:
    """Returns how an adapter is sampled. Raises SettingsError if a checkpoint cannot express it."""
    if config["peft_type"] != SAMPLED_TYPE:
        return None
    ranks = {len(matrix) for (_, letter), matrix in matrices.items() if letter == "A"}
    if len(ranks) != 1:
        raise SettingsError(f"expected one rank for all modules, got {sorted(ranks)}")
    (rank,) = ranks
    for module, _ in matrices:
        projection = projection_of(module)
        expected = "output" if projection and projection.index == INPUT_PROJECTIONS else "input"
        for pattern, role in (config.get("roles") or {}).items():
            if _matches(pattern, module) and role != expected:
                raise SettingsError(f"roles: expected {expected} for {module}, got {role}")
    given = {name: config[name] for name in LAW if config.get(name) is not None}
    values = {"adapters": 1, "rank": rank, "min_rank": max(1, rank // 2)}
    return validated(AdapterSettings, values | given)


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
    """Returns True if a key of `alpha_pattern` or `roles`, a regular expression, means a module."""
    try:
        return re.match(rf"(?:.*\.)?(?:{pattern})$", module) is not None
    except re.error as error:
        raise SettingsError(
            f"alpha_pattern, roles: expected a regular expression, got {pattern}"
        ) from error


BACKBONE_FOLDER = "backbone"
USE = """```python
import torch
from peft import PeftModel
from transformers import ViTForImageClassification

probabilities = []
for index in range({count}):
    backbone = ViTForImageClassification.from_pretrained("backbone")
    model = PeftModel.from_pretrained(backbone, f"adapter_{{index}}").eval()
    probabilities.append(model(pixel_values=images).logits.softmax(-1))
probabilities = torch.stack(probabilities).mean(0)
```

The names of the tensors are those of transformers {version}. `images` are the output of
`ViTImageProcessor.from_pretrained("backbone")`, whose filter differs from the checkpoint's by
rounding to 8 bits."""


SAMPLED_USE = """

`import eulerlora.peft` first, which registers the method. With
`with eulerlora.peft.sampling(model, samples=4, seed=0):` around the call of the model, each
image has 4 rows of logits; without it the model answers in mode det."""


def export_peft(
    checkpoint: Checkpoint, folder: Path, version: TransformersVersion = 5, sampled: bool = False
) -> None:
    """Writes `backbone`, `adapter_0` and so on, and a README, to an existing folder.

    version: of transformers, whose names the adapters have. sampled: write adapters of
    `eulerlora.peft` instead of LoRA. Raises SettingsError for a backbone with an option that
    transformers' ViT does not have, and for `sampled` with another law than the paper's.
    """
    check_format(checkpoint.network.backbone.settings, "peft")
    if sampled and (
        checkpoint.config.method != DEFAULT_METHOD or checkpoint.config.sampled_from_block
    ):
        raise SettingsError("--sampled: expected a checkpoint whose projections are all sampled")
    exported = members(checkpoint)
    _write_backbone(checkpoint, folder / BACKBONE_FOLDER)
    for index, member in enumerate(exported):
        _write_adapter(checkpoint, member, folder / f"adapter_{index}", version, sampled)
    use = USE.format(count=len(exported), version=version) + (SAMPLED_USE if sampled else "")
    (folder / CARD_FILE).write_text(readme(checkpoint, "PEFT", use, sampled), encoding="utf-8")


def _write_backbone(checkpoint: Checkpoint, folder: Path) -> None:
    """Writes a ViTForImageClassification whose head is zero; each adapter has its own."""
    backbone, config = checkpoint.network.backbone, checkpoint.config
    folder.mkdir()
    state = without_layer_scale(backbone.settings, backbone.state_dict())
    classes = len(config.classes)
    head = {
        "classifier.weight": torch.zeros(classes, backbone.settings.width),
        "classifier.bias": torch.zeros(classes),
    }
    tensors = {f"vit.{name}": tensor for name, tensor in vit_state(state).items()} | head
    write_tensors(folder / "model.safetensors", tensors, torch.float32, {"format": "pt"})
    _write_json(folder / "config.json", _vit_config(config))
    _write_json(folder / "preprocessor_config.json", _processor(config))


def _write_adapter(
    checkpoint: Checkpoint,
    member: Member,
    folder: Path,
    version: TransformersVersion,
    sampled: bool,
) -> None:
    original = checkpoint.network.backbone.state_dict()
    tensors = {
        f"{MODULE_PREFIX}classifier.{name}": tensor
        for name, tensor in member.head.state_dict().items()
    }
    for index, block in enumerate(member.blocks):
        scaled = scaled_output(block, original, index)
        prefix = MODULE_PREFIX + VIT_BLOCKS[version].format(index)
        for module, down, up in zip(VIT_PROJECTIONS[version], scaled.down, scaled.up, strict=True):
            tensors |= {f"{prefix}{module}.{LORA[0]}": down, f"{prefix}{module}.{LORA[1]}": up}
    folder.mkdir()
    write_tensors(folder / "adapter_model.safetensors", tensors, torch.float32, {"format": "pt"})
    settings = checkpoint.network.settings
    rank, law = settings.rank, {name: getattr(settings, name) for name in LAW}
    config = {
        "peft_type": SAMPLED_TYPE if sampled else "LORA",
        "task_type": None,
        "base_model_name_or_path": f"../{BACKBONE_FOLDER}",
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(TARGETS[version]),
        "modules_to_save": ["classifier"],
        "inference_mode": True,
    }
    _write_json(folder / "adapter_config.json", config | (law if sampled else {}))


def _vit_config(config: CheckpointConfig) -> dict[str, object]:
    shape = config.backbone.settings
    names = config.class_names
    activation = next(
        name for name, own in TRANSFORMERS_ACTIVATIONS.items() if own == shape.activation
    )
    return {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.mlp_width,
        "hidden_act": activation,
        "layer_norm_eps": shape.norm_epsilon,
        "image_size": shape.image_size,
        "patch_size": shape.patch_size,
        "num_channels": 3,
        "qkv_bias": True,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }


def _processor(config: CheckpointConfig) -> dict[str, object]:
    """Returns the `preprocessor_config.json` that comes closest to the preprocessing."""
    given = config.preprocessing
    square = {"height": given.size, "width": given.size}
    cropped = given.shorter_side is not None
    return {
        "image_processor_type": "CLIPImageProcessor" if cropped else "ViTImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": given.shorter_side} if cropped else square,
        "resample": 2 if given.interpolation.startswith("bilinear") else 3,
        "do_center_crop": cropped,
        "crop_size": square,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": given.mean,
        "image_std": given.std,
    }


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def import_peft(
    folders: Sequence[Path],
    out: Path,
    backbone: str | None = None,
    classes: Sequence[str] = (),
    name: str = "imported",
) -> CheckpointConfig:
    """Writes a checkpoint with the adapters of PEFT folders as an ensemble; returns its config.

    backbone: a source as in `backbones.source.find_source`; None for the one that the adapters
    name. classes: names; () for those of the backbone's configuration. The checkpoint has no
    thresholds. Raises CheckpointError, HubError and SettingsError.
    """
    source = find_source(backbone) if backbone else _base(folders)
    imported = read_source(source)
    shape = imported.backbone.settings
    adapters = [read_adapter(folder, shape) for folder in folders]
    heads = [_head(adapter, source) for adapter in adapters]
    counts = {len(weight) for weight, _ in heads}
    if len(counts) != 1:
        raise SettingsError(f"expected heads of one number of classes, got {sorted(counts)}")
    names = _class_names(classes, source, counts.pop())
    settings = _settings(adapters)
    network = build_network(imported.backbone, settings, len(names), imported.preprocessing)
    _fill(network, adapters, heads)
    origin = {"format": "peft", "adapters": [folder.name for folder in folders]}
    config = config_of(network, network.preprocessing, names, name, imported.provenance, origin)
    save_checkpoint(out, network.eval(), config, _card(config))
    return config


def _settings(adapters: Sequence[ImportedAdapter]) -> AdapterSettings:
    """Returns the settings that all adapters share. Raises SettingsError."""
    laws = {adapter.law for adapter in adapters}
    if len(laws) != 1:
        raise SettingsError("expected adapters of one rank and with one sampling law, got several")
    (law,) = laws
    if law is not None:
        return law.model_copy(update={"adapters": len(adapters)})
    rank = max(adapter.rank for adapter in adapters)
    return AdapterSettings(adapters=len(adapters), rank=rank, min_rank=rank)


def _base(folders: Sequence[Path]) -> WeightsSource:
    """Returns the source of the backbone that all adapters name. Raises SettingsError."""
    names = {str(adapter_config(folder).get("base_model_name_or_path") or "") for folder in folders}
    if len(names) != 1 or "" in names:
        raise SettingsError(
            f"expected adapters of one backbone, got {', '.join(sorted(names)) or 'none'}; name "
            "it with --backbone"
        )
    (name,) = names
    beside = folders[0] / name
    return find_source(str(beside.resolve() if beside.is_dir() else name))


def _head(adapter: ImportedAdapter, source: WeightsSource) -> tuple[Tensor, Tensor]:
    """Returns weight (classes, width) and bias of an adapter's head, or that of its backbone."""
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
            f"expected a classifier of the class token, with {adapter.down.shape[3]} inputs, got "
            f"{weight.shape[1]}",
        )
    return weight, bias


def _class_names(classes: Sequence[str], source: WeightsSource, count: int) -> list[str]:
    stated = (source.json("config.json") or {}).get("id2label") or {}
    names = list(classes) or [str(stated.get(str(i), f"class_{i}")) for i in range(count)]
    if len(names) != count:
        raise SettingsError(f"expected {count} class names, got {len(names)}")
    return names


@torch.no_grad()
def _fill(
    network: AdaptedVisionTransformer,
    adapters: Sequence[ImportedAdapter],
    heads: Sequence[tuple[Tensor, Tensor]],
) -> None:
    for index, adapter in enumerate(adapters):
        for block, down, up in zip(network.blocks, adapter.down, adapter.up, strict=True):
            block.get_parameter("down")[:, index, : adapter.rank] = down
            block.get_parameter("up")[:, index, : adapter.rank] = up
        network.heads.weight[index], network.heads.bias[index] = heads[index]


def _card(config: CheckpointConfig) -> str:
    origin = config.provenance["imported"]["adapters"]
    classes = "\n".join(f"- `{label.name}`" for label in config.classes)
    return (
        f"# {config.name}\n\nImported from the PEFT adapters {', '.join(origin)} on the backbone "
        f"{config.backbone.provenance['imported']['source']}. It is not calibrated: it has no "
        f"thresholds. {UNKNOWN_TRAINING}\n\n## Classes\n\n{classes}\n"
    )

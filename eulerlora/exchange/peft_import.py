"""Import from PEFT: LoRA adapters of a Vision Transformer become the adapters of a checkpoint."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from eulerlora.backbones.importing import ImportedBackbone, read_source
from eulerlora.backbones.source import Source, find_source
from eulerlora.checkpoint.config import AdapterConfig, BackboneConfig, CheckpointConfig, ClassName
from eulerlora.checkpoint.files import save_checkpoint
from eulerlora.checkpoint.safetensor_files import tensors_sha256
from eulerlora.errors import CheckpointError, SettingsError
from eulerlora.exchange.peft_adapters import ImportedAdapter, adapter_config, read_adapter
from eulerlora.methods.registry import build_network
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.settings import AdapterSettings
from eulerlora.validation import validated


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
    rank = max(adapter.rank for adapter in adapters)
    settings = AdapterSettings(adapters=len(adapters), rank=rank, min_rank=max(1, rank // 2))
    network = build_network(imported.backbone, settings, len(names), imported.preprocessing)
    _fill(network, adapters, heads)
    config = _checkpoint_config(network, imported, names, name, folders)
    save_checkpoint(out, network.eval(), config, _card(config))
    return config


def _base(folders: Sequence[Path]) -> Source:
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


def _head(adapter: ImportedAdapter, source: Source) -> tuple[Tensor, Tensor]:
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


def _class_names(classes: Sequence[str], source: Source, count: int) -> list[str]:
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


def _checkpoint_config(
    network: AdaptedVisionTransformer,
    imported: ImportedBackbone,
    names: Sequence[str],
    name: str,
    folders: Sequence[Path],
) -> CheckpointConfig:
    """Returns the config; its data set is folders named like the classes, for calibration."""
    backbone = BackboneConfig(
        settings=network.backbone.settings,
        published=None,
        sha256=tensors_sha256(network.backbone.state_dict()),
        provenance=imported.provenance,
    )
    adapters = AdapterConfig(
        settings=network.settings, sha256=tensors_sha256(dict(network.adapter_parameters()))
    )
    data = {"kind": "imagefolder", "path": ".", "classes": {label: label for label in names}}
    values = {
        "name": name,
        "backbone": backbone,
        "adapters": adapters,
        "classes": tuple(ClassName(name=label, description=label) for label in names),
        "preprocessing": network.preprocessing,
        "provenance": {
            "recipe": {"name": name, "data": data},
            "imported": {"format": "peft", "adapters": [folder.name for folder in folders]},
        },
    }
    return validated(CheckpointConfig, values)


def _card(config: CheckpointConfig) -> str:
    origin = config.provenance["imported"]["adapters"]
    classes = "\n".join(f"- `{label.name}`" for label in config.classes)
    return (
        f"# {config.name}\n\nImported from the PEFT adapters {', '.join(origin)} on the backbone "
        f"{config.backbone.provenance['imported']['source']}. It is not calibrated: it has no "
        "thresholds, and its stochastic mode was not trained.\n\n## Classes\n\n" + classes + "\n"
    )

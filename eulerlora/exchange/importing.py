"""Import of backbones and adapters: another library's files become ours, with a card.

The source of a backbone is a folder with its configuration and its tensors, or a repository of the
Hub. Adapters become a checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import UNKNOWN_TRAINING, config_of, save_checkpoint
from eulerlora.checkpoint.hub import PREFIX, Repository, download
from eulerlora.checkpoint.weights import BACKBONE_FILE, CARD_FILE, save_backbone
from eulerlora.exchange.folders import ImportedBackbone, WeightsSource, read_source
from eulerlora.methods.registry import build_network
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import Preprocessing, Provenance
from eulerlora_contract.errors import CheckpointError, SettingsError
from eulerlora_contract.output_files import check_free, new_folder, write_text


def find_source(name: str) -> WeightsSource:
    """Finds a folder on this machine, or downloads a repository.

    `name` is a path, or ORGANISATION/NAME of the Hub with an optional `hf://` and @REVISION.

    Raises:
        CheckpointError: If there is no such folder.
        HubError: If the repository cannot be downloaded.
    """
    path = Path(name)
    if not name.startswith(PREFIX) and path.is_dir():
        return WeightsSource(path, path.resolve().name)
    if path.is_file():
        raise CheckpointError(
            path,
            "expected a folder that a library saved, got a file; `eulerlora onnx-backbone` reads "
            "ONNX files and wheels",
        )
    if name.startswith((".", "/", "~")):
        raise CheckpointError(path, "expected a folder that a library saved, got none")
    repository = Repository.of_url(name)
    folder = download(repository)
    return WeightsSource(folder, repository.name, revision=folder.name)


def import_backbone(
    source: WeightsSource, out: Path, image_size: int | None = None
) -> ImportedBackbone:
    """Writes the backbone of a source to a new folder, with a card, and returns it.

    Errors as in `read_source`, and CheckpointError if `out` is not empty.
    """
    check_free(out)
    imported = read_source(source, image_size)
    with new_folder(out) as partial:
        path = partial / BACKBONE_FILE
        backbone, origin = imported.backbone, imported.provenance
        save_backbone(path, backbone, origin, torch.float32, imported.preprocessing)
        write_text(partial / CARD_FILE, _card(imported))
    return imported


def _card(imported: ImportedBackbone) -> str:
    source, shape = imported.source, imported.backbone.settings.model_dump(mode="json")
    input_ = imported.preprocessing.model_dump(mode="json")
    revision = f", revision {source.revision}" if source.revision else ""
    lines = [
        f"# Backbone of {source.name}",
        "",
        f"Converted from {source.name}{revision} ({imported.architecture}).",
        f"Licence: {source.licence or 'not stated by the source'}.",
        f"SHA-256 of the source's weights: {imported.sha256}.",
        "",
        "- Shape: " + ", ".join(f"{key} {value}" for key, value in shape.items()),
        "- Input: " + ", ".join(f"{key} {value}" for key, value in input_.items()),
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class ImportedAdapters:
    """An ensemble of adapters on the four projections of every block, each with its head.

    Attributes:
        down: (blocks, 4, adapters, rank, width), like `up`, which has the factor alpha / rank.
        head_weight: (adapters, classes, width).
        head_bias: (adapters, classes).
        format: Of the option `--format`.
        files: Names of the files or folders that they come from.
    """

    settings: AdapterSettings
    down: Tensor
    up: Tensor
    head_weight: Tensor
    head_bias: Tensor
    format: str
    files: Sequence[str]


@torch.no_grad()
def import_adapters(
    adapters: ImportedAdapters,
    backbone: VisionTransformer,
    origin: Provenance,
    preprocessing: Preprocessing,
    classes: Sequence[str],
    name: str,
    out: Path,
) -> CheckpointConfig:
    """Writes a checkpoint with adapters on a backbone of this `origin`, and returns its config.

    It has no thresholds.

    Raises:
        SettingsError: For another number of class names, or a value that a config does not accept.
        CheckpointError: If `out` is not empty.
    """
    count = adapters.head_bias.shape[1]
    if len(classes) != count:
        raise SettingsError(f"expected {count} class names, got {len(classes)}")
    network = build_network(backbone, adapters.settings, count, preprocessing)
    for block, down, up in zip(network.blocks, adapters.down, adapters.up, strict=True):
        block.get_parameter("down").copy_(down)
        block.get_parameter("up").copy_(up)
    network.heads.weight.copy_(adapters.head_weight)
    network.heads.bias.copy_(adapters.head_bias)
    facts = {"format": adapters.format, "adapters": list(adapters.files)}
    config = config_of(network, network.preprocessing, classes, name, origin, facts)
    labels = "\n".join(f"- `{label.name}`" for label in config.classes)
    card = (
        f"# {config.name}\n\nImported from {', '.join(adapters.files)} ({adapters.format}) on the "
        f"backbone {origin['imported']['source']}. It is not calibrated: it has no thresholds. "
        f"{UNKNOWN_TRAINING}\n\n## Classes\n\n{labels}\n"
    )
    save_checkpoint(out, network.eval(), config, card)
    return config

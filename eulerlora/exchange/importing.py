"""Import of a backbone: another library's folder becomes a backbone file with a card.

A source is such a folder, with its configuration and its tensors, or a repository of the Hub.
"""

from pathlib import Path

import torch

from eulerlora.checkpoint.hub import PREFIX, Repository, download
from eulerlora.checkpoint.weights import BACKBONE_FILE, CARD_FILE, save_backbone
from eulerlora.exchange.folders import ImportedBackbone, WeightsSource, read_source
from eulerlora_contract.errors import CheckpointError
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
    if path.is_file() or name.startswith((".", "/", "~")):
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

"""Checkpoint folders: weights, `config.json`, known answer and model card.

Files: `config.json`, `adapters.safetensors`, `README.md`, `known_answer.png`, `known_answer.json`,
`backbone.safetensors` unless the backbone is one of torchvision's published weights, and
`ood.safetensors` if feature statistics were fitted. No pickle in a checkpoint is ever read.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pydantic import ValidationError

from eulerlora.atomic_files import atomic_write, storage_errors
from eulerlora.backbone import read_backbone_weights, save_backbone
from eulerlora.backbone_network import VisionTransformer
from eulerlora.config import CheckpointConfig
from eulerlora.errors import CheckpointError, SettingsError
from eulerlora.feature_distance import FeatureDistance, read_feature_distance
from eulerlora.known_answer import write_known_answer
from eulerlora.safetensor_files import check_digest, read_tensors, write_tensors
from eulerlora.validation import first_fault
from eulerlora.vision_transformer import AdaptedVisionTransformer

CONFIG, ADAPTERS, BACKBONE, CARD = (
    "config.json",
    "adapters.safetensors",
    "backbone.safetensors",
    "README.md",
)
DEFAULT_CHECKPOINT = Path(__file__).parent / "default"
"""The folder of the checkpoint that ships with the package."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint.

    network: on the CPU in float32, in evaluation mode. revision: "sha256:" and the digest of
    `config.json`, which contains the digests of all weights. feature_distance: None without
    feature statistics. folder: where it was read from.
    """

    network: AdaptedVisionTransformer
    config: CheckpointConfig
    revision: str
    feature_distance: FeatureDistance | None = None
    folder: Path | None = None


def load_checkpoint(folder: Path) -> Checkpoint:
    """Reads the checkpoint in `folder` and verifies its weights against `config.json`.

    The network is built without memory for its weights, which are then those of the files: the
    numbers in `config.json` alone allocate nothing. Raises CheckpointError, with file and reason,
    if the checkpoint is not intact.
    """
    text, config = _read_config(folder / CONFIG)
    backbone = _read_backbone(folder, config)
    with torch.device("meta"):
        network = AdaptedVisionTransformer(
            backbone,
            config.adapters.settings,
            len(config.classes),
            config.preprocessing,
            config.method,
        )
    trained = dict(network.adapter_parameters())
    tensors = read_tensors(folder / ADAPTERS, trained)
    check_digest(folder / ADAPTERS, tensors, config.adapters.sha256)
    network.load_state_dict(tensors, strict=False, assign=True)
    distance = read_feature_distance(folder, config)
    return Checkpoint(network.eval(), config, _revision(text), distance, folder)


def sampled_from(checkpoint: Checkpoint, block: int) -> Checkpoint:
    """Returns the checkpoint with another first sampled block, and without what was fitted to it.

    Raises SettingsError for a block that the network does not have.
    """
    config = checkpoint.config
    if block == config.sampled_from_block:
        return checkpoint
    layers = config.backbone.settings.layers
    if block >= layers:
        raise SettingsError(f"sampled_from_block: expected a block below {layers}, got {block}")
    update = {
        "sampled_from_block": block,
        "thresholds": (),
        "margins": None,
        "prediction_sets": (),
    }
    changed = config.model_copy(update=update)
    return replace(checkpoint, config=changed, revision=revision_of(changed))


def revision_of(config: CheckpointConfig) -> str:
    """Returns the revision of a checkpoint with this config."""
    return _revision(_text(config).encode())


def stored_revision(folder: Path) -> str:
    """Returns the revision of the checkpoint in `folder` without reading its weights.

    Raises CheckpointError for a missing or damaged `config.json`.
    """
    return _revision(_read_config(folder / CONFIG)[0])


def read_config(folder: Path) -> CheckpointConfig:
    """Returns the config of the checkpoint in `folder` without reading its weights.

    Raises CheckpointError for a missing or damaged `config.json`.
    """
    return _read_config(folder / CONFIG)[1]


def save_checkpoint(
    folder: Path,
    network: AdaptedVisionTransformer,
    config: CheckpointConfig,
    card: str,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Writes a checkpoint to `folder`, which appears complete or not at all.

    config: its digests must be those of the network's weights rounded to `dtype`. The known answer
    is computed from the written files.
    Raises CheckpointError if `folder` is not empty and StorageError for a full disk.
    """
    check_free(folder)
    with storage_errors(folder), new_folder(folder) as partial:
        write_tensors(partial / ADAPTERS, dict(network.adapter_parameters()), dtype, {})
        if config.backbone.published is None:
            without_constancy = {"colour_constancy": "none"}  # a recipe chooses it
            save_backbone(
                partial / BACKBONE,
                network.backbone,
                config.backbone.provenance,
                dtype,
                config.preprocessing.model_copy(update=without_constancy),
            )
        write_card(partial, card)
        write_config(partial, config)
        write_known_answer(partial, load_checkpoint(partial).network, config)


def write_config(folder: Path, config: CheckpointConfig) -> None:
    """Replaces the folder's `config.json` in one step."""
    _write(folder / CONFIG, _text(config))


def write_card(folder: Path, card: str) -> None:
    """Replaces the folder's model card, `README.md`, in one step."""
    _write(folder / CARD, card)


def check_free(folder: Path) -> None:
    """Raises CheckpointError unless `folder` is empty or does not exist."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(folder, "expected an empty or new folder, got existing files")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder that becomes `folder` when the block succeeds."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield partial
        partial.chmod(0o755)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _text(config: CheckpointConfig) -> str:
    return config.model_dump_json(indent=2) + "\n"


def _revision(text: bytes) -> str:
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


def _read_config(path: Path) -> tuple[bytes, CheckpointConfig]:
    try:
        text = path.read_bytes()
        return text, CheckpointConfig.model_validate_json(text)
    except OSError as error:
        raise CheckpointError(path, f"cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise CheckpointError(path, first_fault(error)) from error


def _read_backbone(folder: Path, config: CheckpointConfig) -> VisionTransformer:
    expected = config.backbone
    if expected.published is None:
        path = folder / BACKBONE
        backbone = read_backbone_weights(path, expected.settings)
    else:
        from eulerlora.published_weights import published_backbone  # noqa: PLC0415 - torchvision

        path = folder / CONFIG
        try:
            backbone = published_backbone(expected.published)
        except (SettingsError, OSError) as error:
            raise CheckpointError(path, f"backbone: {error}") from error
        if backbone.settings != expected.settings:
            raise CheckpointError(path, f"backbone.settings do not match {expected.published}")
    check_digest(path, backbone.state_dict(), expected.sha256)
    return backbone

"""A checkpoint folder: `config.json`, `adapters.safetensors`, `README.md`, the two files of its
known answer, and `backbone.safetensors` where the backbone is not published. No pickle of a
checkpoint is read.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor
from torchvision.models import VisionTransformer

from eulerlora.atomic_files import atomic_write, storage_errors
from eulerlora.backbone import build_backbone, published_backbone, save_backbone, settings_of
from eulerlora.config import CheckpointConfig
from eulerlora.errors import CheckpointError, SettingsError
from eulerlora.known_answer import write_known_answer
from eulerlora.safetensor_files import read_tensors, tensors_sha256, write_tensors
from eulerlora.settings import first_fault
from eulerlora.vision_transformer import AdaptedVisionTransformer

CONFIG, ADAPTERS, BACKBONE, CARD = (
    "config.json",
    "adapters.safetensors",
    "backbone.safetensors",
    "README.md",
)
DEFAULT_CHECKPOINT = Path(__file__).parent / "default"
"""The checkpoint that ships with the package."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint: its network on the CPU in float32, its config and its revision.

    revision: "sha256:" and the digest of `config.json`, which holds the digests of all weights.
    """

    network: AdaptedVisionTransformer
    config: CheckpointConfig
    revision: str


def load_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`, every file checked against `config.json`.

    Raises CheckpointError, naming the file and why, for anything but an intact checkpoint.
    """
    text, config = _read_config(folder / CONFIG)
    backbone = _read_backbone(folder, config)
    network = AdaptedVisionTransformer(backbone, config.adapters.settings, len(config.classes))
    trained = dict(network.adapter_parameters())
    tensors = read_tensors(folder / ADAPTERS, trained)
    _check_digest(folder / ADAPTERS, tensors, config.adapters.sha256)
    network.load_state_dict(tensors, strict=False)
    return Checkpoint(network.eval(), config, _revision(text))


def revision_of(config: CheckpointConfig) -> str:
    """The revision of a checkpoint that says this of itself."""
    return _revision(_text(config).encode())


def stored_revision(folder: Path) -> str:
    """The revision of the checkpoint in `folder`; its weights are not read.

    Raises CheckpointError for a missing or damaged `config.json`.
    """
    return _revision(_read_config(folder / CONFIG)[0])


def read_config(folder: Path) -> CheckpointConfig:
    """What the checkpoint in `folder` says of itself; its weights are not read.

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
    """Writes a whole checkpoint to `folder`, which appears complete or not at all.

    config: its digests must be those of the network's weights as rounded to `dtype`. The known
    answer is that of the files as they are read back.
    Raises CheckpointError where `folder` already holds something, StorageError for a full disk.
    """
    check_free(folder)
    with storage_errors(folder), _whole_folder(folder) as partial:
        write_tensors(partial / ADAPTERS, dict(network.adapter_parameters()), dtype, {})
        if config.backbone.published is None:
            save_backbone(partial / BACKBONE, network.backbone, config.backbone.provenance, dtype)
        write_card(partial, card)
        write_config(partial, config)
        write_known_answer(partial, load_checkpoint(partial).network, config.preprocessing.size)


def write_config(folder: Path, config: CheckpointConfig) -> None:
    """Replaces the folder's `config.json` in one step."""
    _write(folder / CONFIG, _text(config))


def write_card(folder: Path, card: str) -> None:
    """Replaces the folder's model card, `README.md`, in one step."""
    _write(folder / CARD, card)


def check_free(folder: Path) -> None:
    """Raises CheckpointError unless a checkpoint can be written to `folder` without a loss."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(folder, "already holds something; give an empty or new folder")


@contextmanager
def _whole_folder(folder: Path) -> Iterator[Path]:
    """Yields a folder to write to, which becomes `folder` when the block ends well."""
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
    wanted = config.backbone
    if wanted.published is None:
        path = folder / BACKBONE
        backbone = build_backbone(wanted.settings)
        tensors: Mapping[str, Tensor] = read_tensors(path, backbone.state_dict())
        backbone.load_state_dict(tensors)
    else:
        path = folder / CONFIG
        try:
            backbone = published_backbone(wanted.published)
        except (SettingsError, OSError) as error:
            raise CheckpointError(path, f"backbone: {error}") from error
        if settings_of(backbone) != wanted.settings:
            raise CheckpointError(path, f"backbone.settings are not those of {wanted.published}")
        tensors = backbone.state_dict()
    _check_digest(path, tensors, wanted.sha256)
    return backbone


def _check_digest(path: Path, tensors: Mapping[str, Tensor], wanted: str) -> None:
    found = tensors_sha256(tensors)
    if found != wanted:
        raise CheckpointError(
            path, f"the weights' SHA-256 is {found[:16]}..., config.json wants {wanted[:16]}..."
        )

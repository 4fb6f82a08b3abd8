"""Weights in safetensors files, validated when read and written atomically; backbone files.

A `backbone.safetensors` states the shape, provenance and input of its backbone as metadata. The
weights that torchvision publishes are read from torch's hub cache.
"""

import hashlib
import json
import math
import os
import pickle
import re
import shutil
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from eulerlora.nn.backbone import POSITIONS, VisionTransformer
from eulerlora.settings import BackboneSettings, Preprocessing, Provenance
from eulerlora_contract.errors import CheckpointError, SettingsError
from eulerlora_contract.output_files import atomic_write
from eulerlora_contract.settings import validated

if TYPE_CHECKING:
    from torchvision import models
    from torchvision.models import WeightsEnum

BACKBONE_FILE, CARD_FILE = "backbone.safetensors", "README.md"
_MAX_READ_BYTES = 2**24
"""Of a file of a checkpoint that is read whole, such as `config.json`."""
_LICENCE_KEYS = ("license", "license_name")
STORED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def stated_licence(card: str) -> str | None:
    """The licence in the front matter of a model card."""
    _, _, rest = card.partition("---")
    for line in rest.partition("\n---")[0].splitlines():
        key, _, value = line.partition(":")
        if key in _LICENCE_KEYS and (licence := value.strip().strip("\"'")):
            return licence
    return None


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, shapes and float32 values, in the order of the names.

    It identifies weights, not files: the same values in half precision or in another file format
    have the same digest.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().float().cpu().contiguous()
        digest.update(f"{name}:{list(tensor.shape)};".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(path: Path, tensors: Mapping[str, Tensor], expected: str) -> None:
    """Checks that tensors of the file `path` have the digest of the config.

    Raises:
        CheckpointError: If they have another one.
    """
    digest = tensors_sha256(tensors)
    if digest != expected:
        raise CheckpointError(
            path,
            f"expected weights with the SHA-256 {expected[:16]}... of config.json, "
            f"got {digest[:16]}...",
        )


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype, metadata: dict[str, str]
) -> None:
    """Writes all tensors as `dtype`; the file appears complete or not at all.

    Raises:
        OSError: If the disk is full or fails.
    """
    stored = {
        name: tensor.detach().cpu().to(dtype).contiguous() for name, tensor in tensors.items()
    }
    with atomic_write(path) as partial:
        try:
            save_file(stored, partial, metadata=metadata)
        except SafetensorError as error:
            raise _system_error(error, path) from error


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file.

    Raises:
        CheckpointError: If it is unreadable.
    """
    _check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def read_tensors(path: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Reads tensors as float32, in memory that is independent of the file.

    `expected` has the names and shapes of the tensors, on any device; they are compared with the
    file's header before memory is allocated.

    Raises:
        CheckpointError: With file and tensor, for other names or shapes, for a dtype that is not
            floating point and for a non-finite value.
    """
    _check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            _check_shapes(path, shapes, expected)
            return {name: finite(path, name, file.get_tensor(name)) for name in shapes}
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def _check_shapes(
    path: Path, shapes: Mapping[str, list[int]], expected: Mapping[str, Tensor]
) -> None:
    for name in sorted(expected.keys() ^ shapes.keys()):
        fault = "missing" if name in expected else "unexpected"
        raise CheckpointError(path, f"{fault} tensor {name}")
    for name, shape in shapes.items():
        expected_shape = list(expected[name].shape)
        if shape != expected_shape:
            raise CheckpointError(path, f"{name}: expected shape {expected_shape}, got {shape}")


def finite(path: Path, name: str, tensor: Tensor) -> Tensor:
    """Copies a stored tensor as float32; the tensor itself may be mapped from the file.

    Raises:
        CheckpointError: For a dtype that is not floating point and a non-finite value.
    """
    if tensor.dtype not in STORED_DTYPES:
        raise CheckpointError(path, f"{name}: expected floating point, got {tensor.dtype}")
    if not tensor.isfinite().all():
        raise CheckpointError(path, f"{name}: expected finite values, got NaN or infinity")
    return tensor.to(torch.float32, copy=True)


def read_whole(path: Path) -> bytes:
    """Reads a file.

    Raises:
        CheckpointError: If that fails or it exceeds `_MAX_READ_BYTES`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_READ_BYTES + 1)
    except OSError as error:
        raise CheckpointError(path, f"cannot be read ({error.strerror})") from error
    if len(content) > _MAX_READ_BYTES:
        raise CheckpointError(path, f"expected at most {_MAX_READ_BYTES:,} bytes, got more")
    return content


def file_type(mode: int) -> str:
    """The type of a file by its `st_mode`, with an article."""
    named = {
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFDIR: "a folder",
        stat.S_IFREG: "a regular file",
    }
    return named.get(stat.S_IFMT(mode), "a device")


def _check_regular(path: Path) -> None:
    """Raises CheckpointError for a pipe or device, which would be read without end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        kind = file_type(path.stat().st_mode)
        raise CheckpointError(path, f"not a readable safetensors file ({kind})")


def _system_error(error: SafetensorError, path: Path) -> Exception:
    """The OSError that safetensors reports as text; the same error if it is another."""
    match = re.search(r"\(os error (\d+)\)", str(error))
    if match is None:
        return error
    number = int(match[1])
    return OSError(number, os.strerror(number), str(path))


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    if isinstance(error, FileNotFoundError):
        reason = "no such file"
    elif isinstance(error, PermissionError):
        reason = "permission denied"
    else:
        reason = "a folder" if path.is_dir() else "damaged or truncated"
    return CheckpointError(path, f"not a readable safetensors file ({reason})")


def with_weights(settings: BackboneSettings, state: Mapping[str, Tensor]) -> VisionTransformer:
    """A backbone with these tensors as its parameters; it allocates nothing."""
    with torch.device("meta"):
        backbone = VisionTransformer(settings)
    backbone.load_state_dict(state, assign=True)
    return backbone


def at_image_size(backbone: VisionTransformer, image_size: int) -> VisionTransformer:
    """The same weights for another image size; position embeddings are interpolated.

    Raises:
        SettingsError: For a size that is not a multiple of the patch size.
    """
    old = backbone.settings
    settings = validated(BackboneSettings, old.model_dump() | {"image_size": image_size})
    state = backbone.state_dict()
    if POSITIONS in state:
        state[POSITIONS] = resized_positions(state[POSITIONS], settings)
    return with_weights(settings, state)


def resized_positions(positions: Tensor, settings: BackboneSettings) -> Tensor:
    """Interpolates position embeddings to the image size of `settings`.

    `positions`: (1, 1 + side * side, width), the class token's first.
    """
    side = settings.image_size // settings.patch_size
    own_side = math.isqrt(positions.shape[1] - 1)
    if side == own_side:
        return positions
    grid = positions[:, 1:].mT.unflatten(-1, (own_side, own_side))
    resized = F.interpolate(
        grid,
        size=(side, side),
        mode="bicubic",
        align_corners=settings.positions == "corners",
        antialias=settings.positions == "cells-antialias",
    )
    return torch.cat([positions[:, :1], resized.flatten(2).mT], dim=1)


@dataclass(frozen=True)
class BackboneFile:
    """The content of a `backbone.safetensors`: the weights, their provenance and their input."""

    backbone: VisionTransformer
    provenance: Provenance
    preprocessing: Preprocessing


def save_backbone(
    path: Path,
    backbone: VisionTransformer,
    provenance: Provenance,
    dtype: torch.dtype,
    preprocessing: Preprocessing | None = None,
) -> None:
    """Writes a backbone; its shape, provenance and preprocessing are metadata of the file.

    The weights are stored in `dtype`. A `preprocessing` of None stands for that of torchvision's
    backbones in the paper, a resize alone.
    """
    shape = backbone.settings
    preprocessing = preprocessing or Preprocessing(size=shape.image_size)
    metadata = {
        "settings": shape.model_dump_json(),
        "provenance": json.dumps(provenance),
        "preprocessing": preprocessing.model_dump_json(),
    }
    write_tensors(path, backbone.state_dict(), dtype, metadata)


def load_backbone(path: Path) -> BackboneFile:
    """Reads a file of `save_backbone`.

    Raises:
        CheckpointError: For any other or damaged file.
    """
    metadata = read_metadata(path)
    try:
        settings = BackboneSettings.model_validate_json(metadata["settings"])
        provenance = json.loads(metadata["provenance"])
        preprocessing = Preprocessing(size=settings.image_size)
        if "preprocessing" in metadata:  # absent from files of version 0.1
            preprocessing = Preprocessing.model_validate_json(metadata["preprocessing"])
    except (KeyError, ValueError, ValidationError) as error:
        raise CheckpointError(path, "expected metadata of a backbone") from error
    return BackboneFile(read_backbone_weights(path, settings), provenance, preprocessing)


def read_backbone_weights(path: Path, settings: BackboneSettings) -> VisionTransformer:
    """Reads a backbone of this shape.

    Raises:
        CheckpointError: As `read_tensors`.
    """
    with torch.device("meta"):  # the numbers in the settings allocate nothing
        expected = VisionTransformer(settings).state_dict()
    return with_weights(settings, read_tensors(path, expected))


@cache
def _published_weights() -> (
    "dict[str, tuple[Callable[..., models.VisionTransformer], WeightsEnum]]"
):
    """Torchvision's Vision Transformers and their published weights, by name."""
    from torchvision import models  # noqa: PLC0415 - slow to import

    families = (
        (models.vit_b_16, models.ViT_B_16_Weights),
        (models.vit_b_32, models.ViT_B_32_Weights),
        (models.vit_l_16, models.ViT_L_16_Weights),
        (models.vit_l_32, models.ViT_L_32_Weights),
        (models.vit_h_14, models.ViT_H_14_Weights),
    )
    return {
        f"{family.__name__}.{weights.name}": (builder, weights)
        for builder, family in families
        for weights in family
    }


def published_backbone(name: str, file: Path | None = None) -> VisionTransformer:
    """A backbone with one of torchvision's published weights.

    The weights come from torch's hub cache, or are downloaded to it. Their hash is verified and
    only tensors are read.

    Args:
        name: Such as `ViT_B_32_Weights.IMAGENET1K_V1`.
        file: A copy of the published file, which replaces that in the cache; None to use the cache.

    Raises:
        SettingsError: For an unknown name, a file with another hash and a file that is not
            available.
    """
    if name not in _published_weights():
        raise SettingsError(
            f"expected published weights among {', '.join(_published_weights())}, got {name!r}"
        )
    builder, weights = _published_weights()[name]
    with torch.device("meta"):
        model = builder(image_size=weights.meta["min_size"][0])
    cached = _cached(weights.url)
    if file is not None:
        _check_hash(file, weights.url)
        _copy(file, cached)
    elif not cached.exists():
        _download(name, weights.url, cached)
    _check_hash(cached, weights.url)
    try:
        state = torch.load(cached, map_location="cpu", weights_only=True)
        model.load_state_dict(state, assign=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise SettingsError(f"{cached}: does not contain the weights {name}") from error
    return from_torchvision(model)


def _cached(url: str) -> Path:
    return Path(torch.hub.get_dir(), "checkpoints", Path(url).name)


def _advice(url: str) -> str:
    return (
        f"fetch {url}, whose SHA-256 begins {_hash_prefix(url)}, and put it at {_cached(url)}, "
        "or train with --set backbone.file=PATH"
    )


def _copy(file: Path, cached: Path) -> None:
    if cached.exists():
        return
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(cached) as partial:
            shutil.copyfile(file, partial)
    except OSError as error:
        raise SettingsError(f"{file} cannot be copied to {cached} ({error.strerror})") from error


def _download(name: str, url: str, file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as partial:
            prefix, progress = _hash_prefix(url), sys.stderr.isatty()
            torch.hub.download_url_to_file(url, str(partial), prefix, progress)
    except RuntimeError as error:  # torch.hub: the hash differs
        raise SettingsError(
            f"{name}: the downloaded file has another hash; {_advice(url)}"
        ) from error
    except (OSError, HTTPException) as error:
        cause = error.reason if isinstance(error, URLError) else error
        known = isinstance(cause, OSError) and cause.strerror
        reason = f" ({known})" if known else ""
        raise SettingsError(f"{name} cannot be downloaded{reason}; {_advice(url)}") from error


def _check_hash(file: Path, url: str) -> None:
    """Verifies the hash in a file's name; torch.hub does so only after a download."""
    try:
        digest = file_sha256(file)
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read ({error.strerror})") from error
    prefix = _hash_prefix(url)
    if not digest.startswith(prefix):
        raise SettingsError(
            f"{file}: expected a SHA-256 that begins {prefix}, got {digest[: len(prefix)]}; "
            "replace the file"
        )


def _hash_prefix(url: str) -> str:
    """The first digits of a published file's SHA-256, which are part of its name."""
    return Path(url).stem.rpartition("-")[2]


def from_torchvision(model: "models.VisionTransformer") -> VisionTransformer:
    """Takes over the weights of a Vision Transformer of torchvision, without its head.

    The norms of its layers are torchvision's default.
    """
    shape = BackboneSettings(
        image_size=model.image_size,
        patch_size=model.patch_size,
        layers=len(model.encoder.layers),
        heads=model.encoder.layers[0].num_heads,
        width=model.hidden_dim,
        mlp_width=model.mlp_dim,
    )
    state = {
        name: tensor for name, tensor in model.state_dict().items() if not name.startswith("heads.")
    }
    return with_weights(shape, state)

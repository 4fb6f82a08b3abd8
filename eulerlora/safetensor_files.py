"""Tensors and their metadata in safetensors files, read strictly and written atomically."""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from eulerlora.atomic_files import atomic_write
from eulerlora.errors import CheckpointError

STORED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, shapes and float32 values in the order of the names.

    It tells weights apart, not files: the same values stored in half precision or in another
    container have the same digest.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().float().cpu().contiguous()
        digest.update(f"{name}:{list(tensor.shape)};".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype, metadata: dict[str, str]
) -> None:
    """Writes all tensors as `dtype`; the file appears whole or not at all.

    Raises StorageError for a full or failing disk, OSError for what else the system refuses.
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
    """The strings stored beside the tensors. Raises CheckpointError for an unreadable file."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            path, f"not a readable safetensors file ({_one_line(error)})"
        ) from error


def read_tensors(path: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file as float32, which must be just those `expected`.

    expected: tensors of the wanted names and shapes; their values are not looked at.
    Raises CheckpointError, naming the file and the tensor, for an unreadable file, a missing or
    unexpected name, a wrong shape, a dtype that is not floating point, or a non-finite value.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            path, f"not a readable safetensors file ({_one_line(error)})"
        ) from error
    for name in sorted(expected.keys() ^ tensors.keys()):
        what = "is missing" if name in expected else "does not belong to this model"
        raise CheckpointError(path, f"tensor {name} {what}")
    for name, tensor in tensors.items():
        wanted = list(expected[name].shape)
        if list(tensor.shape) != wanted:
            raise CheckpointError(path, f"{name} has shape {list(tensor.shape)}, wanted {wanted}")
        if tensor.dtype not in STORED_DTYPES:
            raise CheckpointError(path, f"{name} has dtype {tensor.dtype}, wanted floating point")
        if not tensor.isfinite().all():
            raise CheckpointError(path, f"{name} has NaN or infinite values")
    return {name: tensor.float() for name, tensor in tensors.items()}


def _system_error(error: SafetensorError, path: Path) -> Exception:
    """The OSError that safetensors passes on as text; its own error where it is none."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    if found is None:
        return error
    number = int(found[1])
    return OSError(number, os.strerror(number), str(path))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

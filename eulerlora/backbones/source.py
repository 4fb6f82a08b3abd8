"""A source of weights: a folder of another library, with its configuration and its tensors."""

import hashlib
import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email import message_from_bytes
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from eulerlora.backbones.onnx_trunk import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    trunk_config,
    trunk_tensors,
)
from eulerlora.checkpoint.hub import PREFIX, Repository, download
from eulerlora.checkpoint.safetensor_files import STORED_DTYPES
from eulerlora.errors import CheckpointError

Json = dict[str, Any]

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
WEIGHTS = (
    "model.safetensors",
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
)
MAX_SHARDS = 1000
LICENCE = re.compile(r"^license(?:_name)?:\s*[\"']?([^\"'\n]+?)[\"']?\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """A folder with the files that a library saves: weights, `config.json` and others.

    name: of the model, for the provenance. revision: of the repository on the Hub, if it is from
    there.
    """

    folder: Path
    name: str
    revision: str | None = None

    def json(self, name: str) -> Json | None:
        """Returns the content of a JSON file, None if there is none. Raises CheckpointError."""
        path = self.folder / name
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise CheckpointError(path, "expected a readable JSON file") from error
        if not isinstance(content, dict):
            raise CheckpointError(path, "expected a JSON object")
        return content

    @property
    def licence(self) -> str | None:
        """The licence in the front matter of the model card, None if it states none."""
        card = self.folder / "README.md"
        if not card.is_file():
            return None
        _, _, rest = card.read_text(encoding="utf-8", errors="replace").partition("---")
        found = LICENCE.search(rest.partition("\n---")[0])
        return found[1] if found else None

    @cached_property
    def files(self) -> list[Path]:
        """The files of the weights: one, or the shards of an index. Raises CheckpointError."""
        for name in INDEXES:
            index = self.json(name)
            if index is not None:
                shards = sorted(set(index.get("weight_map", {}).values()))
                if not shards or len(shards) > MAX_SHARDS or any(Path(s).name != s for s in shards):
                    raise CheckpointError(self.folder / name, "expected a map of file names")
                return [self.folder / shard for shard in shards]
        for name in WEIGHTS:
            if (self.folder / name).is_file():
                return [self.folder / name]
        raise CheckpointError(self.folder, f"expected weights in one of {', '.join(WEIGHTS)}")

    @property
    def sha256(self) -> str:
        """The SHA-256 of the weights' file; of several files, that of their digests in order."""
        digests = []
        for path in self.files:
            with path.open("rb") as content:
                digests.append(hashlib.file_digest(content, "sha256").hexdigest())
        if len(digests) == 1:
            return digests[0]
        return hashlib.sha256("".join(digests).encode()).hexdigest()

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """All tensors as float32, with their names in the files. Raises CheckpointError."""
        tensors: dict[str, Tensor] = {}
        for path in self.files:
            for name, tensor in read_any_tensors(path).items():
                if tensor.dtype in STORED_DTYPES:  # not counters and position indices
                    tensors[name] = tensor.float()
        return tensors


@dataclass(frozen=True)
class OnnxSource(Source):
    """An ONNX file with a DINOv2 trunk, as a source in the form of transformers.

    folder: the file, or a wheel with one such file. content: of the ONNX file. stated_licence: in
    the metadata of the wheel.
    """

    content: bytes = field(default=b"", repr=False)
    stated_licence: str | None = None

    def json(self, name: str) -> Json | None:
        """Returns what transformers' files would state: the shape, and DINOv2's normalisation."""
        if name == "config.json":
            return trunk_config(self.tensors)
        if name == "preprocessor_config.json":
            return {"image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD}
        return None

    @property
    def licence(self) -> str | None:
        """The licence in the metadata of the wheel, None for a file without one."""
        return self.stated_licence

    @cached_property
    def files(self) -> list[Path]:
        """The ONNX file or the wheel."""
        return [self.folder]

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """All tensors of the trunk as float32. Raises SettingsError."""
        return trunk_tensors(self.content)


def read_any_tensors(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a safetensors file or of a pickle that holds tensors only.

    No code in a pickle runs. Raises CheckpointError.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        reason = "expected a readable file of tensors, without code"
        raise CheckpointError(path, reason) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict):
        raise CheckpointError(path, "expected tensors by name")
    return {name: tensor for name, tensor in content.items() if isinstance(tensor, Tensor)}


def find_source(name: str) -> Source:
    """Returns a folder, an ONNX file or a wheel on this machine, or a downloaded repository.

    name: a path, or ORGANISATION/NAME of the Hub with an optional `hf://` and @REVISION. Raises
    CheckpointError and HubError.
    """
    path = Path(name)
    if not name.startswith(PREFIX) and path.is_dir():
        return Source(path, path.resolve().name)
    if path.suffix in (".onnx", ".whl"):
        return _onnx_source(path)
    if name.startswith((".", "/", "~")):
        raise CheckpointError(path, "expected a folder, an ONNX file or a wheel, got none")
    repository = Repository.of_url(name)
    snapshot = download(repository)
    return Source(snapshot.folder, repository.name, snapshot.revision)


def _onnx_source(path: Path) -> OnnxSource:
    try:
        if path.suffix == ".onnx":
            return OnnxSource(path, path.name, content=path.read_bytes())
        with ZipFile(path) as wheel:
            names = wheel.namelist()
            models = [name for name in names if name.endswith(".onnx")]
            folders = [name for name in names if name.endswith(".dist-info/METADATA")]
            if len(models) != 1 or len(folders) != 1:
                raise CheckpointError(path, f"expected a wheel with one ONNX file, got {models}")
            metadata = message_from_bytes(wheel.read(folders[0]))
            licence = metadata["License-Expression"] or metadata["License"]
            name, version = metadata["Name"], metadata["Version"]
            return OnnxSource(path, name, version, wheel.read(models[0]), licence)
    except (OSError, BadZipFile) as error:
        raise CheckpointError(path, "expected a readable ONNX file or wheel") from error

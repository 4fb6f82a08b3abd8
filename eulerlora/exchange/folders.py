"""Vision Transformers in the folders of other libraries: transformers, timm and open_clip."""

import hashlib
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from eulerlora.checkpoint.weights import (
    BACKBONE_FILE,
    CARD_FILE,
    STORED_DTYPES,
    at_image_size,
    file_sha256,
    finite,
    read_whole,
    stated_licence,
)
from eulerlora.exchange.libraries import (
    TRANSFORMERS_MODELS,
    Described,
    Json,
    backbone_of,
    describe_timm,
    is_timm,
    unsupported,
)
from eulerlora.exchange.preprocessing import preprocessing_of
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.settings import Preprocessing, Provenance
from eulerlora_contract.errors import CheckpointError, SettingsError

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WEIGHT_FILES = (
    "model.safetensors",
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
)
_MAX_SHARDS = 1000
_KNOWN = (*TRANSFORMERS_MODELS, "timm's VisionTransformer", "open_clip with a timm trunk")


@dataclass(frozen=True)
class WeightsSource:
    """A folder with the files that a library saves: weights, `config.json` and others.

    Attributes:
        name: Of the model, for the provenance.
        revision: Of a repository on the Hub.
    """

    folder: Path
    name: str
    revision: str | None = None

    def json(self, name: str) -> Json | None:
        """The content of a JSON file, None if there is none.

        Raises:
            CheckpointError: If it is unreadable or no JSON object.
        """
        path = self.folder / name
        if not path.is_file():
            return None
        try:
            content = json.loads(read_whole(path))
        except (ValueError, RecursionError) as error:
            raise CheckpointError(path, "expected a readable JSON file") from error
        if not isinstance(content, dict):
            raise CheckpointError(path, "expected a JSON object")
        return content

    @property
    def licence(self) -> str | None:
        """As stated in the front matter of the model card."""
        card = self.folder / CARD_FILE
        if not card.is_file():
            return None
        return stated_licence(read_whole(card).decode("utf-8", errors="replace"))

    @cached_property
    def files(self) -> list[Path]:
        """The file of the weights, or the shards of an index.

        Raises:
            CheckpointError: If there are none, or the index names no files.
        """
        for name in _INDEXES:
            index = self.json(name)
            if index is not None:
                shards = sorted(set(index.get("weight_map", {}).values()))
                if (
                    not shards
                    or len(shards) > _MAX_SHARDS
                    or any(Path(s).name != s for s in shards)
                ):
                    raise CheckpointError(self.folder / name, "expected a map of file names")
                return [self.folder / shard for shard in shards]
        for name in _WEIGHT_FILES:
            if (self.folder / name).is_file():
                return [self.folder / name]
        if (backbone := self.folder / BACKBONE_FILE).is_file():
            raise CheckpointError(backbone, "already a backbone: use it as backbone.weights")
        raise CheckpointError(self.folder, f"expected weights in one of {', '.join(_WEIGHT_FILES)}")

    @property
    def sha256(self) -> str:
        """Of the weights' file; of several files, that of their digests in order."""
        digests = [file_sha256(path) for path in self.files]
        if len(digests) == 1:
            return digests[0]
        return hashlib.sha256("".join(digests).encode()).hexdigest()

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """All tensors as float32, with their names in the files.

        Raises:
            CheckpointError: As `files` and `read_any_tensors`.
        """
        tensors: dict[str, Tensor] = {}
        for path in self.files:
            for name, tensor in read_any_tensors(path).items():
                if tensor.dtype in STORED_DTYPES:  # not counters and position indices
                    tensors[name] = tensor.float()
        return tensors


@dataclass(frozen=True)
class ImportedBackbone:
    """A converted backbone.

    Attributes:
        sha256: Of the source's file of weights.
        stated_input: False if the source states no preprocessing, so that it is a resize alone.
    """

    backbone: VisionTransformer
    preprocessing: Preprocessing
    architecture: str
    source: WeightsSource
    sha256: str
    stated_input: bool

    @property
    def provenance(self) -> Provenance:
        return {
            "imported": {
                "source": self.source.name,
                "revision": self.source.revision,
                "architecture": self.architecture,
                "licence": self.source.licence,
                "sha256": self.sha256,
            }
        }


def read_any_tensors(path: Path) -> dict[str, Tensor]:
    """Reads a safetensors file, or a pickle that holds tensors only; no code in it runs.

    Tensors without stored values (of the device `meta`) and sparse ones are left out.

    Raises:
        CheckpointError: For anything else, and for a damaged file.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (
        *(OSError, EOFError, RuntimeError, SafetensorError, pickle.UnpicklingError),
        *(ValueError, LookupError, TypeError, AttributeError),  # of a damaged pickle
    ) as error:
        reason = "expected a readable file of tensors, without code"
        raise CheckpointError(path, reason) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict):
        raise CheckpointError(path, "expected tensors by name")
    return {
        name: tensor
        for name, tensor in content.items()
        if isinstance(tensor, Tensor) and not tensor.is_meta and tensor.layout is torch.strided
    }


def read_source(
    source: WeightsSource,
    image_size: int | None = None,
    preprocessing: Preprocessing | None = None,
) -> ImportedBackbone:
    """Reads the backbone in a folder of transformers, timm or open_clip.

    `image_size` is in pixels; None for that of the preprocessing, which is the source's if None.

    Raises:
        CheckpointError: With the folder, also for an architecture or option that is not known.
    """
    try:
        config = source.json("config.json") or {}
        model = _describe(source, config)
        size = model.settings.image_size
        stated = preprocessing or stated_preprocessing(source, size, model.architecture)
        preprocessing = stated or Preprocessing(size=size)
        backbone = backbone_of(model)
        for name, tensor in backbone.state_dict().items():
            finite(source.folder, name, tensor)
        preprocessing = preprocessing.at_size(image_size or preprocessing.size)
        backbone = at_image_size(backbone, preprocessing.size)
    except SettingsError as error:
        raise CheckpointError(source.folder, str(error)) from error
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        reason = f"a configuration has a value of an unexpected kind ({error})"
        raise CheckpointError(source.folder, reason) from error
    return ImportedBackbone(
        backbone, preprocessing, model.architecture, source, source.sha256, stated is not None
    )


def _describe(source: WeightsSource, config: Json) -> Described:
    architecture = config.get("model_type")
    if architecture in TRANSFORMERS_MODELS:
        return TRANSFORMERS_MODELS[architecture](config, source.tensors)
    if architecture is None or "architecture" in config:
        model = _timm_model(source, config)
        if model is not None:
            return model
    name = architecture or config.get("architecture") or "a model without a model_type"
    fault = unsupported(source.tensors)
    reason = f" with {fault}" if fault else ""
    raise SettingsError(f"unknown architecture {name}{reason}; known are {', '.join(_KNOWN)}")


def _timm_model(source: WeightsSource, config: Json) -> Described | None:
    if is_timm(source.tensors):
        return describe_timm(config, source.tensors)
    trunk = {
        name.removeprefix("visual.trunk."): tensor
        for name, tensor in source.tensors.items()
        if name.startswith("visual.trunk.")
    }
    if not is_timm(trunk):
        return None
    stated = source.json("open_clip_config.json") or {}
    vision = (stated.get("model_cfg") or {}).get("vision_cfg") or {}
    named = {
        "architecture": vision.get("timm_model_name", ""),
        "global_pool": vision.get("timm_pool"),
    }
    return describe_timm(named, trunk)


def stated_preprocessing(source: WeightsSource, image_size: int, kind: str) -> Preprocessing | None:
    """The preprocessing in the files of a folder, None if they state none.

    `image_size` and `kind`, a `model_type` of transformers, are those of its model.

    Raises:
        SettingsError: For steps that `Preprocessing` has not.
        CheckpointError: For an unreadable file.
    """
    nested = (source.json("processor_config.json") or {}).get("image_processor")
    processor = nested or source.json("preprocessor_config.json")
    config, open_clip = source.json("config.json") or {}, source.json("open_clip_config.json")
    stated: Json
    if processor is not None:
        stated = {"image_processor": processor}
    elif open_clip is not None:
        stated = {"preprocess_cfg": open_clip.get("preprocess_cfg") or {}}
    elif "pretrained_cfg" in config or {"mean", "std"} <= config.keys():
        stated = {"pretrained_cfg": config.get("pretrained_cfg") or config}
    else:
        return None
    return preprocessing_of(stated, image_size, kind)

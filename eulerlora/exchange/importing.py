"""Import of a backbone: another library's folder becomes a backbone file with a card.

A source is such a folder, with its configuration and its tensors, or a repository of the Hub;
`backbone_of_module` copies a Vision Transformer in memory.
"""

import hashlib
import json
import pickle
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Generator, Tensor, nn

from eulerlora.checkpoint.hub import PREFIX, Repository, download
from eulerlora.checkpoint.weights import (
    BACKBONE_FILE,
    CARD_FILE,
    STORED_DTYPES,
    at_image_size,
    file_sha256,
    finite,
    from_torchvision,
    read_whole,
    save_backbone,
    stated_licence,
    with_weights,
)
from eulerlora.exchange.libraries import (
    TRANSFORMERS_MODELS,
    Described,
    Json,
    converted,
    describe_timm,
    is_timm,
    unsupported,
)
from eulerlora.exchange.preprocessing import preprocessing_of
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.settings import Preprocessing, Provenance
from eulerlora_contract.errors import CheckpointError, SettingsError
from eulerlora_contract.output_files import check_free, new_folder, write_text

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

    `name` is that of the model, for the provenance, and `revision` that of a repository on the Hub.
    """

    folder: Path
    name: str
    revision: str | None = None

    def json(self, name: str) -> Json | None:
        """The content of a JSON file, None if there is none. Raises CheckpointError."""
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
        """The file of the weights, or the shards of an index. Raises CheckpointError."""
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
        """All tensors as float32, with their names in the files. Raises CheckpointError."""
        tensors: dict[str, Tensor] = {}
        for path in self.files:
            for name, tensor in read_any_tensors(path).items():
                if tensor.dtype in STORED_DTYPES:  # not counters and position indices
                    tensors[name] = tensor.float()
        return tensors


@dataclass(frozen=True)
class ImportedBackbone:
    """A converted backbone, its input, its origin, and the digest of the source's weights' file.

    `stated_input` is False if the source states no preprocessing, so that it is a resize alone.
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


def find_source(name: str) -> WeightsSource:
    """Finds a folder on this machine, or downloads a repository.

    `name` is a path, or ORGANISATION/NAME of the Hub with an optional `hf://` and @REVISION. Raises
    CheckpointError or HubError.
    """
    path = Path(name)
    if not name.startswith(PREFIX) and path.is_dir():
        return WeightsSource(path, path.resolve().name)
    if path.is_file() or name.startswith((".", "/", "~")):
        raise CheckpointError(path, "expected a folder that a library saved, got none")
    repository = Repository.of_url(name)
    folder = download(repository)
    return WeightsSource(folder, repository.name, revision=folder.name)


def read_any_tensors(path: Path) -> dict[str, Tensor]:
    """Reads a safetensors file, or a pickle that holds tensors only.

    No code in a pickle runs. Raises CheckpointError.
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
    return {name: tensor for name, tensor in content.items() if isinstance(tensor, Tensor)}


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


def read_source(
    source: WeightsSource,
    image_size: int | None = None,
    preprocessing: Preprocessing | None = None,
) -> ImportedBackbone:
    """Reads the backbone in a folder of transformers, timm or open_clip.

    `image_size` is in pixels; None for that of the preprocessing, which is the source's if None.
    Raises CheckpointError with the folder, also for an architecture or option that is not known.
    """
    try:
        config = source.json("config.json") or {}
        model = _describe(source, config)
        size = model.settings.image_size
        stated = preprocessing or stated_preprocessing(source, size, model.architecture)
        preprocessing = stated or Preprocessing(size=size)
        backbone = _backbone_of(model)
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


def stated_preprocessing(
    source: WeightsSource, image_size: int, kind: str = ""
) -> Preprocessing | None:
    """The preprocessing in the files of a folder, None if they state none.

    `image_size` and `kind`, a `model_type` of transformers, are those of its model. Raises
    SettingsError for steps that `Preprocessing` has not, and CheckpointError.
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


def _backbone_of(model: Described) -> VisionTransformer:
    state = converted(model.tensors, model.layout, model.settings)
    with torch.device("meta"):  # only the shapes matter
        expected = VisionTransformer(model.settings).state_dict()
    for name, tensor in state.items():
        if name not in expected or tensor.shape != expected[name].shape:
            wanted = tuple(expected[name].shape) if name in expected else "none"
            raise SettingsError(f"{name}: expected shape {wanted}, got {tuple(tensor.shape)}")
    return with_weights(model.settings, state)


_MAX_DIFFERENCE = 1e-5
"""Of the features of the copied backbone from those of the original, relative to the largest."""

_Library = Literal["torchvision", "timm", "transformers"]


def backbone_of_module(vit: nn.Module) -> tuple[VisionTransformer, _Library]:
    """Copies a float32 Vision Transformer in memory, on its device, in evaluation mode.

    The features of the copy are compared with those of `vit` on two random images. Raises
    SettingsError if they differ, and for another network.
    """
    _check_plain(vit)
    library = _library_of(vit)
    _check_square(vit, library)
    backbone = _copied(vit, library).to(next(vit.parameters()).device).eval()
    _check_features(vit, backbone, library)
    return backbone, library


def preprocessing_of_module(vit: Any, library: _Library, image_size: int) -> Preprocessing | None:
    """What the library's own configuration of a network in memory states; None for nothing.

    It is timm's `pretrained_cfg`, for this image size, or the image processor in the folder, or in
    the cache of the Hub, from which transformers loaded the network, if it is for this image size.
    """
    stated: Preprocessing | None = None
    try:
        if library == "timm" and (config := getattr(vit, "pretrained_cfg", None)):
            size = {"input_size": (3, image_size, image_size)}
            stated = preprocessing_of({"pretrained_cfg": dict(config) | size}, image_size)
        elif library == "transformers" and (folder := _folder_of(vit)) is not None:
            source = WeightsSource(folder, folder.name)
            stated = stated_preprocessing(source, image_size, vit.config.model_type)
    except (SettingsError, CheckpointError):
        return None  # `save` asks for one
    return stated if stated is not None and stated.size == image_size else None


def _folder_of(vit: Any) -> Path | None:
    """The folder from which transformers loaded a network."""
    name = vit.config.name_or_path
    if not name or Path(name).is_dir():
        return Path(name) if name else None
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - of transformers

    revision = getattr(vit.config, "_commit_hash", None)
    found = try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


_WRAPPERS = {
    "OptimizedModule": ("a compiled network", "vit._orig_mod"),
    "DataParallel": ("a network in DataParallel", "vit.module"),
    "DistributedDataParallel": ("a network in DistributedDataParallel", "vit.module"),
    "FullyShardedDataParallel": ("a sharded network", "the network before sharding"),
    "AdaptedClassifier": ("a network that has adapters", "the network that adapt got"),
    "Sequential": ("several modules in a row", "the Vision Transformer alone"),
}
"""Modules around a network by their class: what they are, and what to give instead."""
_LIBRARIES = "a Vision Transformer of torchvision, timm or transformers"


def _check_plain(vit: object) -> None:
    """Raises SettingsError if the parameters of `vit` are not those of a network of a library."""
    if not isinstance(vit, nn.Module):
        raise SettingsError(f"vit: expected {_LIBRARIES}, got {type(vit).__name__}")
    name = next((kind.__name__ for kind in type(vit).__mro__ if kind.__name__ in _WRAPPERS), None)
    if name is not None and type(vit).__module__.partition(".")[0] in ("torch", "eulerlora"):
        kind, inner = _WRAPPERS[name]
        raise SettingsError(f"vit: expected {_LIBRARIES}, got {kind}; give {inner}")
    if isinstance(vit, torch.jit.ScriptModule):
        raise SettingsError(f"vit: expected {_LIBRARIES}, got a TorchScript module")
    homes = {part for module in vit.modules() for part in type(module).__module__.split(".")}
    if "peft" in homes:
        raise SettingsError(
            "vit: expected a network without adapters, got layers of PEFT; give "
            "vit.merge_and_unload() to keep what they learned, or vit.unload()"
        )
    if homes & {"quantized", "bitsandbytes", "torchao", "auto_gptq", "awq", "quanto"}:
        raise SettingsError(
            "vit: expected float32 parameters, got quantised layers; load it without quantisation"
        )
    if "parametrize" in homes or torch.nn.utils.parametrize.is_parametrized(vit):
        raise SettingsError(
            "vit: expected plain parameters, got parametrised ones; remove them with "
            "torch.nn.utils.parametrize.remove_parametrizations"
        )
    parameters = list(vit.parameters())
    if not parameters:
        raise SettingsError(
            f"vit: expected {_LIBRARIES}, got {type(vit).__name__} without parameters"
        )
    types = sorted({str(parameter.dtype) for parameter in parameters} - {str(torch.float32)})
    if types:
        quantised = not all(parameter.is_floating_point() for parameter in parameters)
        way = "load it without quantisation" if quantised else "give vit.float()"
        raise SettingsError(f"vit: expected float32 parameters, got {', '.join(types)}; {way}")
    devices = sorted({str(parameter.device) for parameter in parameters})
    if len(devices) > 1:
        raise SettingsError(
            f"vit: expected one device, got {', '.join(devices)}; use vit.to(device)"
        )
    if devices == ["meta"]:
        raise SettingsError("vit: expected weights, got parameters on the device meta; load them")
    if not all(parameter.isfinite().all() for parameter in parameters):
        raise SettingsError("vit: expected finite parameters, got NaN or infinity")


def _check_square(vit: Any, library: _Library) -> None:
    """Raises SettingsError for rectangular images or patches, and for other channels than three."""
    if library == "torchvision":
        return  # it has squares only
    if library == "timm":
        source, names = getattr(vit, "patch_embed", None), ("img_size", "patch_size")
        channels = getattr(getattr(source, "proj", None), "in_channels", 3)
    else:
        source = getattr(vit.config, "vision_config", vit.config)
        names = ("image_size", "patch_size")
        channels = getattr(source, "num_channels", 3)
    for name in names:
        size = getattr(source, name, None)
        if isinstance(size, list | tuple) and len(set(size)) != 1:
            raise SettingsError(
                f"vit: expected square images and patches, got {name}={tuple(size)}; rectangular "
                "ones are not supported"
            )
    if channels != 3:
        raise SettingsError(f"vit: expected images of 3 channels, got {channels}")


def _library_of(vit: nn.Module) -> _Library:
    modules = {kind.__module__.partition(".")[0] for kind in type(vit).__mro__}
    if "torchvision" in modules and hasattr(vit, "conv_proj"):
        return "torchvision"
    if "timm" in modules and hasattr(vit, "blocks"):
        return "timm"
    if "transformers" in modules:
        return "transformers"
    raise SettingsError(
        f"vit: expected {_LIBRARIES}, got {type(vit).__module__}.{type(vit).__name__}"
    )


def _copied(vit: Any, library: _Library) -> VisionTransformer:
    if library == "transformers":  # its files have the names that are known, its modules may not
        from transformers.utils import logging  # noqa: PLC0415 - an extra

        shown = logging.is_progress_bar_enabled()
        with tempfile.TemporaryDirectory() as folder:
            logging.disable_progress_bar()  # type: ignore[no-untyped-call]
            try:
                vit.save_pretrained(folder)
            finally:
                if shown:
                    logging.enable_progress_bar()  # type: ignore[no-untyped-call]
            try:
                return read_source(WeightsSource(Path(folder), type(vit).__name__)).backbone
            except CheckpointError as error:
                raise SettingsError(f"vit: {error.reason}") from error
    state = {name: tensor.detach().cpu().clone() for name, tensor in vit.state_dict().items()}
    if library == "torchvision":
        backbone = from_torchvision(vit)
        parameters = {name: state[name] for name in backbone.state_dict()}
        backbone.load_state_dict(parameters, assign=True)
        return backbone
    if not is_timm(state):
        raise SettingsError(
            "vit: expected a Vision Transformer of timm with patch_embed.proj and attn.qkv, got "
            f"{type(vit).__name__}"
        )
    block = vit.blocks[0]
    quick = type(block.mlp.act).__name__ == "QuickGELU"
    arguments = {"num_heads": block.attn.num_heads} | ({"act_layer": "quick_gelu"} if quick else {})
    config = {"global_pool": vit.global_pool, "model_args": arguments}
    return _backbone_of(describe_timm(config, state))


@torch.no_grad()
def _check_features(vit: nn.Module, backbone: VisionTransformer, library: _Library) -> None:
    size, device = backbone.settings.image_size, next(vit.parameters()).device
    images = torch.rand(2, 3, size, size, generator=Generator().manual_seed(0)).to(device)
    training = [module for module in vit.modules() if module.training]
    vit.eval()
    try:
        expected = _features(vit, images, library)
    finally:
        for module in training:
            module.training = True
    difference = (backbone(images) - expected).abs().max().item()
    if not difference <= _MAX_DIFFERENCE * max(1, expected.abs().max().item()):
        raise SettingsError(
            f"vit: expected a network with the features of its architecture, got {difference:.1e} "
            "as the largest difference"
        )


def _features(vit: Any, images: Tensor, library: _Library) -> Tensor:
    """The input (n, width) of the original's head."""
    features: Tensor
    if library == "timm":
        features = vit.forward_head(vit.forward_features(images), pre_logits=True)
    elif library == "transformers":
        tower = getattr(vit.base_model, "vision_model", vit.base_model)
        output = tower(pixel_values=images)
        is_clip = vit.config.model_type.startswith("clip")
        features = output.pooler_output if is_clip else output.last_hidden_state[:, 0]
    else:
        inputs: list[Tensor] = []
        handle = vit.heads.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        try:
            vit(images)
        finally:
            handle.remove()
        features = inputs[0]
    return features

"""Import of a backbone: another library's folder becomes a backbone file with a card."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eulerlora.backbones import preprocessing as stated
from eulerlora.backbones import timm_models, transformers_models
from eulerlora.backbones.layout import converted
from eulerlora.backbones.source import Json, Source
from eulerlora.backbones.transformers_models import Described
from eulerlora.checkpoint.backbone import at_image_size, save_backbone, with_weights
from eulerlora.checkpoint.config import Provenance
from eulerlora.checkpoint.files import BACKBONE, CARD, check_free, new_folder
from eulerlora.errors import CheckpointError, SettingsError
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.settings import Preprocessing

KNOWN = (*transformers_models.MODELS, "timm's VisionTransformer", "open_clip with a timm trunk")


@dataclass(frozen=True)
class ImportedBackbone:
    """A converted backbone, its input, and its origin.

    architecture: an entry of `KNOWN`, in short. sha256: of the source's weights' file.
    stated_input: False if the source states no preprocessing, so that it is a resize alone.
    """

    backbone: VisionTransformer
    preprocessing: Preprocessing
    architecture: str
    source: Source
    sha256: str
    stated_input: bool

    @property
    def provenance(self) -> Provenance:
        """The origin, as it is stored in checkpoints."""
        return {
            "imported": {
                "source": self.source.name,
                "revision": self.source.revision,
                "architecture": self.architecture,
                "licence": self.source.licence,
                "sha256": self.sha256,
            }
        }


def read_source(source: Source, image_size: int | None = None) -> ImportedBackbone:
    """Returns the backbone in a folder of transformers, timm or open_clip.

    image_size: of the backbone in pixels; None for that of the source's preprocessing. Raises
    CheckpointError, with the folder, for damaged files and for an architecture or option that is
    not known.
    """
    try:
        config = source.json("config.json") or {}
        model = _describe(source, config)
        settings = model.settings
        state = converted(model.tensors, model.layout, settings)
        input_ = _preprocessing(source, config, model)
        preprocessing = input_ or Preprocessing(size=settings.image_size)
        backbone = _loaded(model, state)
        preprocessing = preprocessing.at_size(image_size or preprocessing.size)
        backbone = at_image_size(backbone, preprocessing.size)
    except SettingsError as error:
        raise CheckpointError(source.folder, str(error)) from error
    return ImportedBackbone(
        backbone, preprocessing, model.architecture, source, source.sha256, input_ is not None
    )


def import_backbone(source: Source, out: Path, image_size: int | None = None) -> ImportedBackbone:
    """Writes the backbone of a source to a new folder, with a card, and returns it.

    Errors as in `read_source`, and CheckpointError if `out` is not empty.
    """
    check_free(out)
    imported = read_source(source, image_size)
    with new_folder(out) as partial:
        path = partial / BACKBONE
        backbone, origin = imported.backbone, imported.provenance
        save_backbone(path, backbone, origin, torch.float32, imported.preprocessing)
        (partial / CARD).write_text(card(imported), encoding="utf-8")
    return imported


def card(imported: ImportedBackbone) -> str:
    """Returns the Markdown of the folder: origin, licence, shape and input."""
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


def _describe(source: Source, config: Json) -> Described:
    """Returns the model of a source. Raises SettingsError for an unknown one."""
    architecture = config.get("model_type")
    if architecture in transformers_models.MODELS:
        return transformers_models.describe(config, source.tensors)
    if architecture is None or "architecture" in config:
        model = _timm_model(source, config)
        if model is not None:
            return model
    name = architecture or config.get("architecture") or "a model without a model_type"
    raise SettingsError(f"unknown architecture {name}; known are {', '.join(KNOWN)}")


def _timm_model(source: Source, config: Json) -> Described | None:
    if timm_models.is_timm(source.tensors):
        return timm_models.describe(config, source.tensors)
    trunk = timm_models.trunk(source.tensors)
    if not timm_models.is_timm(trunk):
        return None
    vision = _vision(source.json("open_clip_config.json") or {})
    named = {"architecture": vision.get("timm_model_name", ""), "global_pool": _pool(vision)}
    return timm_models.describe(named, trunk)


def _vision(config: Json) -> Json:
    vision: Json = (config.get("model_cfg") or {}).get("vision_cfg") or {}
    return vision


def _pool(vision: Mapping[str, str]) -> str:
    return vision.get("timm_pool") or "token"


def _preprocessing(source: Source, config: Json, model: Described) -> Preprocessing | None:
    """Returns the preprocessing that a source states, None if it states none."""
    size = model.settings.image_size
    processor = source.json("preprocessor_config.json")
    if processor is not None:
        return stated.of_image_processor(processor, size)
    open_clip = source.json("open_clip_config.json")
    if open_clip is not None:
        return stated.of_open_clip(open_clip, size)
    if "pretrained_cfg" in config or ("mean" in config and "std" in config):
        return stated.of_timm(config, size)
    return None


def _loaded(model: Described, state: dict[str, Tensor]) -> VisionTransformer:
    """Returns the backbone. Raises SettingsError if a tensor has another shape than stated."""
    expected = _shapes(model)
    for name, tensor in state.items():
        if name not in expected or tensor.shape != expected[name].shape:
            wanted = tuple(expected[name].shape) if name in expected else "none"
            raise SettingsError(f"{name}: expected shape {wanted}, got {tuple(tensor.shape)}")
    return with_weights(model.settings, state)


def _shapes(model: Described) -> dict[str, Tensor]:
    with torch.device("meta"):
        return VisionTransformer(model.settings).state_dict()

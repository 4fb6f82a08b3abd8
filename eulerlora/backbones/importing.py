"""Import of a backbone: another library's folder becomes a backbone file with a card."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose
from pathlib import Path

import torch
from torch import Tensor

from eulerlora.backbones.libraries import (
    TRANSFORMERS_MODELS,
    Described,
    converted,
    describe_timm,
    describe_transformers,
    is_timm,
    timm_trunk,
)
from eulerlora.backbones.source import Json, Source
from eulerlora.checkpoint.backbone import at_image_size, save_backbone, with_weights
from eulerlora.checkpoint.config import Provenance
from eulerlora.checkpoint.files import BACKBONE, CARD, check_free, new_folder
from eulerlora.errors import CheckpointError, SettingsError
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.settings import Preprocessing
from eulerlora_client.settings import validated

BILINEAR, BICUBIC = "bilinear-antialias", "bicubic-antialias"
PILLOW_FILTERS = {2: BILINEAR, 3: BICUBIC}
"""By Pillow's numbers, which `preprocessor_config.json` has."""
LEVELS = 255


def of_image_processor(config: Json, image_size: int) -> Preprocessing:
    """Returns the preprocessing of a `preprocessor_config.json` of transformers.

    image_size: of the model, if the file states no size. Raises SettingsError for a filter or a
    size that cannot be expressed.
    """
    size, filter_ = config.get("size", image_size), config.get("resample", 2)
    if filter_ not in PILLOW_FILTERS:
        raise SettingsError(f"expected resample 2 (bilinear) or 3 (bicubic), got {filter_}")
    values: Json = {"interpolation": PILLOW_FILTERS[filter_], "size": _side(size)}
    if isinstance(size, dict) and "shortest_edge" in size:
        cropped = config.get("do_center_crop", False)
        crop = config.get("crop_size", image_size) if cropped else values["size"]
        values |= {"resize": "crop", "shorter_side": values["size"], "size": _side(crop)}
    return validated(Preprocessing, values | _colours(config))


def of_timm(config: Json, image_size: int) -> Preprocessing:
    """Returns the preprocessing of `pretrained_cfg` in a `config.json` of timm."""
    given = config.get("pretrained_cfg") or config
    size = (given.get("input_size") or (3, image_size, image_size))[-1]
    squash = given.get("crop_mode") == "squash"
    shorter_side = int(size / given.get("crop_pct", 1.0))
    return validated(
        Preprocessing, _given(given, squash) | {"size": size} | _crop(squash, shorter_side)
    )


def of_open_clip(config: Json, image_size: int) -> Preprocessing:
    """Returns the preprocessing of `preprocess_cfg` in an `open_clip_config.json`."""
    given = config.get("preprocess_cfg") or {}
    squash = given.get("resize_mode") == "squash"
    defaults = {"interpolation": "bicubic"}
    return validated(
        Preprocessing,
        _given(defaults | given, squash) | {"size": image_size} | _crop(squash, image_size),
    )


def _given(given: Json, squash: bool) -> Json:
    """Returns filter, mean and standard deviation in the words of timm."""
    filter_ = given.get("interpolation", "bicubic")
    if filter_ not in ("bilinear", "bicubic"):
        raise SettingsError(f"expected interpolation bilinear or bicubic, got {filter_}")
    values: Json = {
        "interpolation": f"{filter_}-antialias",
        "resize": "squash" if squash else "crop",
    }
    return values | {key: given[key] for key in ("mean", "std") if given.get(key)}


def _crop(squash: bool, shorter_side: int) -> Json:
    return {} if squash else {"shorter_side": shorter_side}


def _side(size: object) -> object:
    """Returns the side in pixels of a size, which may be a number or a dictionary."""
    if isinstance(size, dict):
        sides = {size[key] for key in ("height", "width", "shortest_edge") if key in size}
        return sides.pop() if len(sides) == 1 else size
    return size


def _colours(config: Json) -> Json:
    """Returns mean and standard deviation for pixels in [0, 1]."""
    factor = config.get("rescale_factor", 1 / LEVELS) if _does(config, "rescale") else 1.0
    scale = 1.0 if isclose(LEVELS * factor, 1) else LEVELS * factor
    mean, std = [0.0] * 3, [1.0] * 3
    if _does(config, "normalize"):
        mean, std = config.get("image_mean", mean), config.get("image_std", std)
    return {"mean": [value / scale for value in mean], "std": [value / scale for value in std]}


def _does(config: Json, step: str) -> bool:
    return bool(config.get(f"do_{step}", True))


KNOWN = (*TRANSFORMERS_MODELS, "timm's VisionTransformer", "open_clip with a timm trunk")


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
    if architecture in TRANSFORMERS_MODELS:
        return describe_transformers(config, source.tensors)
    if architecture is None or "architecture" in config:
        model = _timm_model(source, config)
        if model is not None:
            return model
    name = architecture or config.get("architecture") or "a model without a model_type"
    raise SettingsError(f"unknown architecture {name}; known are {', '.join(KNOWN)}")


def _timm_model(source: Source, config: Json) -> Described | None:
    if is_timm(source.tensors):
        return describe_timm(config, source.tensors)
    trunk = timm_trunk(source.tensors)
    if not is_timm(trunk):
        return None
    vision = _vision(source.json("open_clip_config.json") or {})
    named = {"architecture": vision.get("timm_model_name", ""), "global_pool": _pool(vision)}
    return describe_timm(named, trunk)


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
        return of_image_processor(processor, size)
    open_clip = source.json("open_clip_config.json")
    if open_clip is not None:
        return of_open_clip(open_clip, size)
    if "pretrained_cfg" in config or ("mean" in config and "std" in config):
        return of_timm(config, size)
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

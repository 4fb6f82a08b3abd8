"""`Preprocessing` from what other libraries call it: their configurations, files and transforms.

`preprocessing_of` reads timm's data configuration, an image processor of transformers, a preset or
a `Compose` of torchvision, and open_clip's `preprocess_cfg`. What cannot be computed in the same
way, such as a padded border, is refused.
"""

import json
from collections.abc import Mapping
from math import isclose
from pathlib import Path
from typing import Any

from torch import Tensor

from eulerlora.settings import Preprocessing
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.settings import validated

_Fields = Mapping[str, Any]
Colours = Mapping[str, tuple[float, float, float]]
"""`mean` and `std` of a Preprocessing."""

_KNOWN = (
    "a Preprocessing, timm's resolve_model_data_config(model), an image processor of transformers, "
    "the transforms of torchvision's weights, a Compose of torchvision, or a mapping with their "
    "values"
)
_PILLOW_FILTERS = {2: "bilinear", 3: "bicubic"}
"""By Pillow's numbers, which an image processor has."""
_OF_SHORTER = ("clip", "bit", "dinov2")
"""Image processors, and models with one, that read a `size` without a key as the shorter side."""
DEFAULT_IMAGE_SIZE = 224
"""Of transformers and timm, in pixels."""
_PIXEL_LEVELS = 255
UNNORMALISED: Colours = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
_IMAGENET: Colours = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_CLIP: Colours = {
    "mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711),
}  # fmt: skip
NORMALISATIONS: tuple[Colours, ...] = (
    UNNORMALISED, {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}, _IMAGENET, _CLIP,
)  # fmt: skip
"""Those of nearly all pretrained networks."""
_TIMM_DEFAULTS = {"crop_pct": 0.875, **_IMAGENET}
"""Those of timm's `resolve_data_config`."""


def preprocessing_of(given: object, image_size: int, kind: str = "") -> Preprocessing:
    """Reads how a library, or a loop with its transforms, prepares images.

    Args:
        given: A Preprocessing, timm's `resolve_model_data_config(model)` or `pretrained_cfg`, an
            image processor of transformers or its file's content, torchvision's
            `weights.transforms()`, a `Compose` of a resize, a central crop and a normalisation, or
            open_clip's `preprocess_cfg`.
        image_size: In pixels, where `given` does not state it.
        kind: The `model_type` of transformers, where an image processor does not state its own.

    Raises:
        SettingsError: For another kind of value, and for steps that `Preprocessing` has not.
    """
    if isinstance(given, Preprocessing):
        return given
    if isinstance(given, Mapping):
        return _of_mapping(given, image_size, kind)
    if hasattr(given, "image_processor"):  # a processor of texts and images
        return preprocessing_of(given.image_processor, image_size, kind)
    if hasattr(given, "to_dict") and hasattr(given, "do_normalize"):
        return _of_image_processor(given.to_dict(), image_size, kind)
    if hasattr(given, "resize_size") and hasattr(given, "crop_size"):
        return _of_preset(given)
    steps = getattr(given, "transforms", None)
    if isinstance(steps, list | tuple):
        return _of_steps(steps)
    name = f"{type(given).__module__}.{type(given).__name__}"
    raise SettingsError(f"preprocessing: expected {_KNOWN}, got {name}")


def read_preprocessing(path: Path) -> Preprocessing:
    """Reads a JSON file with one of the mappings that `preprocessing_of` reads.

    Such as transformers' `preprocessor_config.json`, or the fields of Preprocessing.

    Raises:
        SettingsError: For another file, and for steps that `Preprocessing` has not.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: expected a readable JSON file") from error
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: expected a JSON object")
    try:
        return preprocessing_of(content, DEFAULT_IMAGE_SIZE)
    except (SettingsError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise SettingsError(f"{path}: {error}") from error


def _of_mapping(given: _Fields, image_size: int, kind: str) -> Preprocessing:
    if "image_processor" in given:
        return _of_image_processor(given["image_processor"], image_size, kind)
    if "preprocess_cfg" in given:
        return _of_open_clip(given.get("preprocess_cfg") or {}, image_size)
    if "resize_mode" in given:
        return _of_open_clip(given, image_size)
    if "pretrained_cfg" in given:
        return _of_timm(given["pretrained_cfg"], image_size)
    if any(name.startswith(("do_", "image_", "resample", "feature_extractor")) for name in given):
        return _of_image_processor(given, image_size, kind)
    if "size" in given:
        return validated(Preprocessing, dict(given))
    if "mean" in given or "input_size" in given:
        return _of_timm(given, image_size)
    raise SettingsError(f"preprocessing: expected {_KNOWN}, got the keys {sorted(given)}")


def _of_image_processor(config: _Fields, image_size: int, kind: str) -> Preprocessing:
    """The preprocessing of an image processor of transformers, by its saved values.

    `kind` and `image_size` are those of the model, for what the values do not state.
    """
    kind = config.get("image_processor_type") or config.get("feature_extractor_type") or kind
    size, filter_ = config.get("size", image_size), config.get("resample", 2)
    if filter_ not in _PILLOW_FILTERS:
        raise SettingsError(f"expected resample 2 (bilinear) or 3 (bicubic), got {filter_}")
    if isinstance(size, int) and str(kind).lower().startswith(_OF_SHORTER):
        size = {"shortest_edge": size}

    def does(step: str, default: bool = True) -> bool:
        value = config.get(f"do_{step}")
        return default if value is None else bool(value)

    if not does("resize"):
        raise SettingsError("expected do_resize=true, got false")
    for step in ("pad", "flip_channel_order"):
        if does(step, default=False):
            raise SettingsError(f"expected do_{step}=false, got true")
    side = _side(size)
    crop = side
    if does("center_crop", default=False):
        crop = _side(config.get("crop_size") or image_size)
    values: dict[str, Any] = {"interpolation": _interpolation(_PILLOW_FILTERS[filter_])}
    values["size"] = crop
    if isinstance(size, Mapping) and "shortest_edge" in size:
        values |= {"resize": "crop", "shorter_side": side}
    elif crop != side:
        raise SettingsError(f"crop_size: expected {side} after a resize to a square, got {crop}")

    factor = config.get("rescale_factor", 1 / _PIXEL_LEVELS) if does("rescale") else 1.0
    scale = 1.0 if isclose(_PIXEL_LEVELS * factor, 1) else _PIXEL_LEVELS * factor
    mean, std = [0.0] * 3, [1.0] * 3
    if does("normalize"):
        mean, std = config.get("image_mean", mean), config.get("image_std", std)
    values |= {"mean": [value / scale for value in mean], "std": [value / scale for value in std]}
    if does("normalize") and not {"image_mean", "image_std"} <= config.keys():
        raise SettingsError("expected image_mean and image_std with do_normalize=true, got none")
    return validated(Preprocessing, values)


def _of_timm(config: _Fields, image_size: int) -> Preprocessing:
    """The preprocessing of a `pretrained_cfg` or a data configuration of timm."""
    stated = {key: value for key, value in config.items() if value is not None}
    given: _Fields = {**_TIMM_DEFAULTS, **stated}
    size = _side(tuple(given.get("input_size") or (3, image_size, image_size))[1:])
    if not isinstance(size, int):
        raise SettingsError(f"input_size: expected 3 channels of a square, got {size}")
    mode, resized = given.get("crop_mode") or "center", int(size / given["crop_pct"])
    if mode not in ("center", "squash"):
        raise SettingsError(f"expected crop_mode center or squash, got {mode}")
    if mode == "squash" and resized != size:
        raise SettingsError(f"expected crop_pct=1 with crop_mode=squash, got {given['crop_pct']}")
    return _in_words(given, size, None if mode == "squash" else resized)


def _of_open_clip(config: _Fields, image_size: int) -> Preprocessing:
    """The preprocessing of open_clip's `preprocess_cfg`."""
    stated = {key: value for key, value in config.items() if value is not None}
    given: _Fields = {**_CLIP, **stated}  # of `PreprocessCfg`
    size = _side(given.get("size") or image_size)
    mode = given.get("resize_mode", "shortest")
    if mode not in ("shortest", "squash"):
        raise SettingsError(f"expected resize_mode shortest or squash, got {mode}")
    return _in_words(given, size, None if mode == "squash" else size)


def _of_preset(given: Any) -> Preprocessing:
    """The preprocessing of torchvision's `weights.transforms()`."""
    _check_antialias(given)
    return _in_words(vars(given), _side(given.crop_size), _side(given.resize_size))


_CONVERSIONS = (
    "PILToTensor", "ToImage", "ToPureTensor", "MaybePILToTensor", "MaybeConvertMode", "RGB",
    "_convert_to_rgb",
)  # fmt: skip
_SCALING = ("ToTensor", "MaybeToTensor", "ConvertImageDtype", "ToDtype")


def _of_steps(steps: list[Any] | tuple[Any, ...]) -> Preprocessing:
    """The preprocessing of a `Compose` of torchvision, timm or open_clip."""
    done: dict[str, Any] = {}
    for step in steps:
        name = getattr(step, "__name__", type(step).__name__)
        if name in _CONVERSIONS:
            continue
        kind = "scale" if name in _SCALING else name
        expected = {"Resize": (), "CenterCrop": ("Resize",), "scale": (), "Normalize": ("scale",)}
        if kind not in expected or kind in done or "Normalize" in done:
            raise SettingsError(
                "preprocessing: expected Resize, CenterCrop, ToTensor and Normalize in this order "
                f"and no random step, got {name}"
            )
        if missing := [before for before in expected[kind] if before not in done]:
            raise SettingsError(f"preprocessing: expected {missing[0]} before {name}, got none")
        done[kind] = step
    if missing := [kind for kind in ("Resize", "scale") if kind not in done]:
        raise SettingsError(
            "preprocessing: expected a Compose with "
            f"{'ToTensor' if missing[0] == 'scale' else 'Resize'}, got none"
        )
    if getattr(done["scale"], "scale", True) is False:
        raise SettingsError("preprocessing: expected ToDtype with scale=True, got scale=False")
    resize, normalise = done["Resize"], done.get("Normalize")
    _check_antialias(resize)
    to_square = isinstance(resize.size, list | tuple) and len(resize.size) == 2
    side = _side(resize.size)
    crop = _side(done["CenterCrop"].size) if "CenterCrop" in done else side if to_square else None
    if crop is None or (to_square and crop != side) or getattr(resize, "max_size", None):
        raise SettingsError(
            "preprocessing: expected Resize to a square, or Resize of the shorter side with "
            f"CenterCrop, got {resize}"
        )
    colours = {} if normalise is None else {"mean": normalise.mean, "std": normalise.std}
    filter_ = {"interpolation": resize.interpolation}
    return _in_words(filter_ | colours, crop, None if to_square else side)


def _check_antialias(resize: Any) -> None:
    if not getattr(resize, "antialias", True):
        raise SettingsError("preprocessing: expected antialias=True, got False")


def _in_words(given: _Fields, size: object, shorter_side: object) -> Preprocessing:
    """A preprocessing by the name of its filter; a shorter side of None squashes."""
    values: dict[str, Any] = {"size": size}
    values["interpolation"] = _interpolation(given.get("interpolation", "bicubic"))
    if shorter_side is not None:
        values |= {"resize": "crop", "shorter_side": shorter_side}
    colours = {key: _three(given[key]) for key in ("mean", "std") if key in given}
    return validated(Preprocessing, values | colours)


def _three(values: Any) -> list[float]:
    """Of each channel; those of a float32 tensor as they were written, such as 0.485."""
    if isinstance(values, Tensor):
        values = [float(f"{value:.7g}") for value in values.tolist()]
    numbers = [float(value) for value in values]
    return numbers * 3 if len(numbers) == 1 else numbers


def _interpolation(given: object) -> str:
    name = getattr(given, "value", given)  # of torchvision's InterpolationMode
    if name not in ("bilinear", "bicubic"):
        raise SettingsError(f"expected interpolation bilinear or bicubic, got {name}")
    return f"{name}-antialias"


def _side(size: object) -> object:
    """The side of a square in pixels; other sizes as they are."""
    if isinstance(size, Mapping):
        sides = {size[key] for key in ("height", "width", "shortest_edge") if key in size}
        return sides.pop() if len(sides) == 1 else size
    if isinstance(size, list | tuple):
        return size[0] if len(set(size)) == 1 else size
    return size

"""The preprocessing that another library's configuration states."""

from math import isclose

from eulerlora.backbones.source import Json
from eulerlora.errors import SettingsError
from eulerlora.settings import Preprocessing
from eulerlora.validation import validated

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

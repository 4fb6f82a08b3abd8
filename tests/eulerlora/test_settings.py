"""eulerlora.settings: accepted and refused values."""

import math

import pytest
import torch
from pydantic import BaseModel, ValidationError
from torchvision import models

from eulerlora.checkpoint.weights import from_torchvision
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import BackboneSettings, Draw, Preprocessing

STEM = {"image_size": 24, "heads": 3, "width": 12, "stem": "convolution"}
CROP = {"size": 32, "resize": "crop"}
STOCH = {"mode": "stoch", "samples": 4}


def test_defaults_are_the_papers_adapters_on_vit_b_32() -> None:
    settings = AdapterSettings()
    assert (settings.adapters, settings.rank, settings.min_rank) == (2, 20, 10)
    assert (settings.steps, settings.scale) == (2, 1.0)
    with torch.device("meta"):
        assert BackboneSettings() == from_torchvision(models.vit_b_32(weights=None)).settings


@pytest.mark.parametrize(
    ("model", "values", "named"),
    [
        *((AdapterSettings, {n: 0}, n) for n in ("adapters", "rank", "min_rank", "steps")),
        *((AdapterSettings, {"scale": v}, "scale") for v in (-0.1, math.nan, math.inf)),
        (AdapterSettings, {"rank": 4, "min_rank": 5}, "min_rank"),
        (AdapterSettings, {"alpha": 1}, "alpha"),
        (BackboneSettings, {"image_size": 30, "patch_size": 8}, "patch_size"),
        (BackboneSettings, {"width": 10, "heads": 4}, "heads"),
        *((BackboneSettings, STEM | {"patch_size": size}, "patch_size") for size in (1, 12)),
        (Preprocessing, CROP, "shorter_side"),
        (Preprocessing, {"size": 32, "shorter_side": 40}, "shorter_side"),
        (Preprocessing, CROP | {"shorter_side": 31}, "shorter_side"),
        (Preprocessing, {"size": 32, "std": (1, 0, 1)}, "std"),
        *(
            (Preprocessing, {"size": 32, "canvas": canvas}, "canvas")
            for canvas in ((40, 31), (40, 44), (9000, 40), (40,))
        ),
        (Preprocessing, CROP | {"shorter_side": 40, "canvas": (40, 40)}, "canvas"),
        (Draw, {"mode": "det", "samples": 2}, "samples"),
        (Draw, STOCH | {"samples": 0}, "samples"),
        *((Draw, STOCH | {"seed": seed}, "seed") for seed in (-1, 2**32)),
        *((Draw, STOCH | {"first": first}, "first") for first in (4, 5, -1)),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(
    model: type[BaseModel], values: dict[str, object], named: str
) -> None:
    with pytest.raises(ValidationError, match=named):
        model.model_validate(values)


def test_values_at_the_limits_are_accepted() -> None:
    assert AdapterSettings(scale=0).scale == 0.0
    assert AdapterSettings(rank=4, min_rank=4).min_rank == 4
    assert Draw(mode="stoch", seed=2**32 - 1).seed == 2**32 - 1
    assert Draw() == Draw(mode="det", samples=1, seed=0, sampler="independent")


def test_options_with_their_defaults_do_not_appear_in_a_file() -> None:
    assert set(BackboneSettings().model_dump()) == {
        "image_size", "patch_size", "layers", "heads", "width", "mlp_width",
    }  # fmt: skip
    changed = BackboneSettings(layer_scale=True, norm_epsilon=1e-12)
    assert {"layer_scale", "norm_epsilon"} <= set(changed.model_dump())
    assert BackboneSettings.model_validate_json(changed.model_dump_json()) == changed
    assert set(Preprocessing(size=32).model_dump()) == {
        "scale", "resize", "interpolation", "size", "colour_constancy",
    }  # fmt: skip


def test_preprocessing_of_another_size_keeps_the_share_of_the_crop() -> None:
    crop = Preprocessing(size=224, resize="crop", shorter_side=256)
    assert crop.at_size(448) == crop.model_copy(update={"size": 448, "shorter_side": 512})
    assert Preprocessing(size=224).at_size(64) == Preprocessing(size=64)


def test_a_large_image_keeps_the_pixels_that_a_canvas_needs() -> None:
    assert Preprocessing(size=112, canvas=(200, 150)).input_side == 150

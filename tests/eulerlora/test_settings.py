"""eulerlora.settings: accepted and refused values."""

import pytest
import torch
from pydantic import ValidationError
from torchvision import models

from eulerlora.checkpoint.published_weights import from_torchvision
from eulerlora.settings import AdapterSettings, BackboneSettings, Draw, Preprocessing


def test_defaults_are_the_papers_adapters_on_vit_b_32() -> None:
    settings = AdapterSettings()
    assert (settings.adapters, settings.rank, settings.min_rank) == (2, 20, 10)
    assert (settings.steps, settings.scale) == (2, 1.0)
    with torch.device("meta"):
        assert BackboneSettings() == from_torchvision(models.vit_b_32(weights=None)).settings


@pytest.mark.parametrize("name", ["adapters", "rank", "min_rank", "steps"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "many", None])
def test_a_count_must_be_a_positive_integer(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        AdapterSettings.model_validate({name: value})


@pytest.mark.parametrize("scale", [-0.1, float("nan"), float("inf"), "much"])
def test_a_scale_must_be_finite_and_not_negative(scale: object) -> None:
    with pytest.raises(ValidationError, match="scale"):
        AdapterSettings.model_validate({"scale": scale})


def test_a_scale_of_zero_is_allowed() -> None:
    assert AdapterSettings(scale=0).scale == 0.0


def test_a_least_rank_above_the_rank_is_refused() -> None:
    assert AdapterSettings(rank=4, min_rank=4).min_rank == 4
    with pytest.raises(ValidationError, match="expected min_rank of at most rank=4, got 5"):
        AdapterSettings(rank=4, min_rank=5)


@pytest.mark.parametrize("model", [AdapterSettings, BackboneSettings, Draw])
def test_an_unknown_key_is_refused(model: type) -> None:
    with pytest.raises(ValidationError, match="alpha"):
        model.model_validate({"alpha": 1})


@pytest.mark.parametrize("settings", [AdapterSettings(), BackboneSettings(), Draw()])
def test_settings_are_immutable(settings: AdapterSettings | BackboneSettings | Draw) -> None:
    name = next(iter(type(settings).model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(settings, name, 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"image_size": 30, "patch_size": 8},
            "image_size to be a multiple of patch_size=8, got 30",
        ),
        ({"width": 10, "heads": 4}, "width to be a multiple of heads=4, got 10"),
    ],
)
def test_indivisible_sizes_are_refused(values: dict[str, int], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BackboneSettings(**values)


@pytest.mark.parametrize("patch_size", [1, 12])
def test_a_convolutional_stem_needs_a_patch_size_that_is_a_power_of_two(patch_size: int) -> None:
    with pytest.raises(ValidationError, match="power of two"):
        BackboneSettings(
            image_size=24, patch_size=patch_size, heads=3, width=12, stem="convolution"
        )


def test_tokens_are_the_patches_and_the_class_token_as_torchvision_counts_them() -> None:
    assert BackboneSettings().tokens == 50
    with torch.device("meta"):
        assert BackboneSettings().tokens == models.vit_b_32(weights=None).seq_length
    assert BackboneSettings(image_size=32, patch_size=8, registers=4).tokens == 16 + 1 + 4


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


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"resize": "crop"}, "expected shorter_side with resize=crop"),
        ({"shorter_side": 40}, "expected shorter_side with resize=crop"),
        ({"resize": "crop", "shorter_side": 31}, "expected shorter_side of at least size=32"),
        ({"std": (1, 0, 1)}, "std"),
    ],
)
def test_preprocessing_that_cannot_work_is_refused(values: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Preprocessing.model_validate({"size": 32} | values)


def test_preprocessing_of_another_size_keeps_the_share_of_the_crop() -> None:
    crop = Preprocessing(size=224, resize="crop", shorter_side=256)
    assert crop.at_size(448) == crop.model_copy(update={"size": 448, "shorter_side": 512})
    assert Preprocessing(size=224).at_size(64) == Preprocessing(size=64)


def test_a_deterministic_draw_has_one_sample() -> None:
    assert Draw() == Draw(mode="det", samples=1, seed=0, sampler="independent")
    with pytest.raises(ValidationError, match="samples: expected 1 in mode det, got 2"):
        Draw(mode="det", samples=2)


@pytest.mark.parametrize("samples", [0, -1, 1.5, float("nan")])
def test_samples_must_be_a_positive_integer(samples: object) -> None:
    with pytest.raises(ValidationError, match="samples"):
        Draw.model_validate({"mode": "stoch", "samples": samples})


@pytest.mark.parametrize("seed", [-1, 2**32, 0.5])
def test_a_seed_must_have_32_bits(seed: object) -> None:
    assert Draw(mode="stoch", seed=2**32 - 1).seed == 2**32 - 1
    with pytest.raises(ValidationError, match="seed"):
        Draw.model_validate({"mode": "stoch", "seed": seed})


@pytest.mark.parametrize("key", ["mode", "sampler"])
def test_an_unknown_mode_or_sampler_is_refused(key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        Draw.model_validate({key: "mean"})


@pytest.mark.parametrize(
    "wrong", [{"samples": 4, "first": 4}, {"samples": 4, "first": 5}, {"samples": 4, "first": -1}]
)
def test_a_draw_runs_at_least_one_sample(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="first"):
        Draw(mode="stoch", **wrong)


def test_a_draw_runs_the_samples_after_the_first_ones() -> None:
    assert Draw(mode="stoch", samples=12, first=8).count == 4
    assert Draw(mode="stoch", samples=12).count == 12

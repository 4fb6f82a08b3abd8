"""Costs: operations against a count by hand, rows and steps of runs, and estimated hours."""

from pathlib import Path

import pytest
import torch

from eulerlora.methods.registry import DEFAULT_METHOD
from eulerlora.settings import AdapterSettings, BackboneSettings
from tests.conftest import TINY_BACKBONE
from tests.training.synthetic_runs import finish
from training.recipe.file import RECIPES, read_recipe
from training.recipe.schema import NO_ADAPTERS, AdapterRecipe, BackboneSource, DataSettings
from training.tables.costs import (
    _operations,
    answer_flops,
    backbone_shape,
    estimated_hours,
    rows_of_answer,
    training_cost,
    training_images,
)
from training.tables.runs import TableRun, runs_of
from training.tables.table import read_table

CPU = torch.device("cpu")
TABLE = read_table("ham10000-methods")
RESULT = {"steps": 10, "images_per_second": 8.0, "seconds": 40.0}  # 320 images
DEEP = TINY_BACKBONE.model_copy(update={"layers": 6})
ONE_ADAPTER = AdapterSettings(adapters=1, rank=4, min_rank=4)


def run_of(folder: Path, variant: str) -> TableRun:
    (run,) = runs_of(TABLE, [0], [], folder, [variant])
    finish(run, backbone=TINY_BACKBONE, published=None, training=RESULT)
    return run


def test_a_prediction_of_a_whole_network_costs_its_matrix_products() -> None:
    """All but the class token are left out of the last block, but for keys and values."""
    tokens, width, mlp = DEEP.tokens, DEEP.width, DEEP.mlp_width
    patches = 2 * (tokens - 1) * width * 3 * DEEP.patch_size**2
    products = 2 * tokens * width * (4 * width + 2 * mlp) + 2 * 2 * tokens**2 * width
    last = 2 * 2 * tokens * width**2 + 2 * width * (2 * width + 2 * mlp) + 2 * 2 * tokens * width
    low_rank = 2 * width * 2  # of the adapter of rank 1, which is computed although it is 0
    adapted = 4 * tokens * low_rank * (DEEP.layers - 1) + 2 * (tokens + 1) * low_rank
    head = 2 * width * 7
    expected = patches + (DEEP.layers - 1) * products + last + adapted + head
    counted = _operations(DEEP, NO_ADAPTERS, 7, DEFAULT_METHOD, True, 1)
    assert counted.prediction == pytest.approx(expected, rel=1e-6)
    assert 2.6 < counted.training / counted.prediction < 3  # weights and inputs, backward


def test_frozen_weights_save_a_third_of_the_operations_of_a_step() -> None:
    adapters = _operations(BackboneSettings(layers=4), ONE_ADAPTER, 7, DEFAULT_METHOD, False, 1)
    whole = _operations(BackboneSettings(layers=4), NO_ADAPTERS, 7, DEFAULT_METHOD, True, 1)
    assert 1.7 < adapters.training / adapters.prediction < 2.1
    assert adapters.training < 0.75 * whole.training


def test_rows_and_steps_follow_from_the_run(tmp_path: Path) -> None:
    for variant, rows_per_image, members in (
        ("single", 1, 1), ("eulerlora-2", 2, 1), ("eulerlora-1-four-samples", 4, 1),
        ("explicit-4", 1, 4), ("snapshots-4", 1, 4),
    ):  # fmt: skip
        run = run_of(tmp_path, variant)
        cost = training_cost(run.configs(), run.recipe)
        assert cost.rows == members * 320 * rows_per_image
        assert (cost.steps, cost.seconds) == (members * 10, members * 40.0)


@pytest.mark.parametrize(
    ("variant", "mode", "samples", "rows"),
    [("single", "det", 1, 1), ("explicit-4", "det", 1, 4), ("eulerlora-2", "stoch", 4, 8)],
)
def test_an_answer_has_a_row_for_each_member_or_trajectory(
    tmp_path: Path, variant: str, mode: str, samples: int, rows: int
) -> None:
    run = run_of(tmp_path, variant)
    assert rows_of_answer(run.configs(), mode, samples) == rows  # type: ignore[arg-type]
    single = run_of(tmp_path / "single", "single")
    one = answer_flops(single.configs(), single.recipe, "det", 1)
    flops = answer_flops(run.configs(), run.recipe, mode, samples)  # type: ignore[arg-type]
    assert (rows == 1) == (flops == one)
    assert flops >= 0.9 * one


def tiny_run(recipe_file: Path, *overrides: str, variant: str | None = None) -> TableRun:
    read = read_recipe(recipe_file, AdapterRecipe, ["evaluation.ood=[]", *overrides])
    return TableRun(recipe_file, read.model_copy(update={"variant": variant}), recipe_file.parent)


@pytest.mark.parametrize(
    ("override", "factor"),
    [
        ("training.epochs=30", 2),
        ("training.samples=1", 1 / 2),
        ("adapters.adapters=4", 2),
        ("training.batch_size=10", 60 / 56),  # padded to whole batches
        ("data.at_most={train = 24}", 24 / 56),
    ],
)
def test_estimated_hours_are_proportional_to_steps_and_rows(
    recipe_file: Path, image_folder: Path, override: str, factor: float
) -> None:
    data = image_folder
    base, changed = (
        estimated_hours(tiny_run(recipe_file, "data.path=.", *more), [], data, CPU)
        for more in ((), (override,))
    )
    assert base is not None
    assert changed == pytest.approx(base * factor)


def test_whole_networks_cost_half_as_much_again_for_each_member(tmp_path: Path) -> None:
    hours = {
        run.recipe.variant: estimated_hours(run, [], tmp_path, CPU)
        for run in runs_of(read_table("ham10000"), [0], [], tmp_path)
    }
    assert hours["lora-20"] is not None
    assert hours["single"] == hours["snapshots-16"] == pytest.approx(1.5 * hours["lora-20"])
    assert hours["explicit-16"] == pytest.approx(16 * 1.5 * hours["lora-20"])


def test_finished_runs_of_a_variant_tell_the_hours_of_its_other_seeds(tmp_path: Path) -> None:
    runs = runs_of(TABLE, [0, 42], [], tmp_path, ["explicit-4"])
    finish(runs[0], backbone=TINY_BACKBONE, published=None, training=RESULT)
    assert estimated_hours(runs[1], runs[:1], tmp_path, CPU) == pytest.approx(4 * 40 / 3600)


def test_hours_are_unknown_without_the_images_or_the_backbone(
    recipe_file: Path, image_folder: Path, tmp_path: Path
) -> None:
    for override in ("data.path=gone", "backbone.weights=absent.safetensors"):
        run = tiny_run(recipe_file, override)
        assert estimated_hours(run, [], image_folder, CPU) is None


def test_the_shape_of_a_backbone_needs_no_weights(recipe_file: Path) -> None:
    folder = recipe_file.parent
    file = backbone_shape(BackboneSource(weights="backbone.safetensors"), folder)
    assert file == TINY_BACKBONE
    larger = backbone_shape(BackboneSource(weights="backbone.safetensors", image_size=64), folder)
    assert larger == TINY_BACKBONE.model_copy(update={"image_size": 64})
    published = backbone_shape(BackboneSource(weights="ViT_B_16_Weights.IMAGENET1K_V1"), folder)
    assert published == BackboneSettings(patch_size=16)
    embedded = backbone_shape(BackboneSource(weights="embedded"), folder)
    assert embedded is not None
    assert embedded.width < 768


def test_training_images_are_counted_without_opening_one(
    image_folder: Path, tmp_path: Path
) -> None:
    data = DataSettings(kind="imagefolder", path=image_folder.name)
    assert training_images(data, image_folder.parent) == 54
    limited = data.model_copy(update={"at_most": {"train": 20}})
    assert training_images(limited, image_folder.parent) == 20
    validated = data.model_copy(update={"split": "lesion-best-epoch"})
    assert training_images(validated, image_folder.parent) == 49
    paper = read_recipe(RECIPES / "ham10000.toml", AdapterRecipe).data
    assert training_images(paper, tmp_path) == 8_012
    assert training_images(DataSettings(kind="imagefolder", path="absent"), tmp_path) is None

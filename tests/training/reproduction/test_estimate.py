"""Estimates of runs: their scaling, the sizes of data sets, and the bytes of a real step."""

from pathlib import Path

import pytest
import torch

from eulerlora.settings import BackboneSettings
from tests.conftest import TINY_BACKBONE
from training.recipe.file import find_recipe, read_recipe
from training.recipe.schema import AdapterRecipe, BackboneSource, DataSettings
from training.reproduction import estimate as estimates
from training.reproduction.estimate import RowCost, backbone_shape, estimate, measured_cost
from training.reproduction.prerequisites import ImageCounts, image_counts

CPU = torch.device("cpu")
COUNTS = ImageCounts(train=1_000, calibration=0, test=0)


@pytest.fixture
def unit_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for each row of a step, and a gigabyte of saved tensors."""
    monkeypatch.setattr(estimates, "measured_cost", lambda *_: RowCost(1.0, 0.0, 1e9))


def recipe(recipe_file: Path, *overrides: str) -> AdapterRecipe:
    return read_recipe(recipe_file, AdapterRecipe, ["evaluation.ood=[]", *overrides])


@pytest.mark.parametrize(
    ("overrides", "hours"),
    [
        ((), 15 * 1_000 * 2 * 2 / 3600),
        (("training.epochs=30",), 30 * 1_000 * 2 * 2 / 3600),
        (("training.samples=1",), 15 * 1_000 * 2 / 3600),
        (("adapters.adapters=4",), 15 * 1_000 * 4 * 2 / 3600),
        (("training.batch_size=40",), 15 * 1_000 * 2 * 2 / 3600),
    ],
)
def test_hours_are_steps_times_rows(
    recipe_file: Path, unit_cost: None, overrides: tuple[str, ...], hours: float
) -> None:
    cost = estimate(recipe(recipe_file, *overrides), recipe_file.parent, COUNTS, CPU)
    assert cost is not None
    assert cost.hours == pytest.approx(hours)


def test_micro_batches_limit_the_memory(recipe_file: Path, unit_cost: None) -> None:
    whole, limited = (
        estimate(recipe(recipe_file, *overrides), recipe_file.parent, COUNTS, CPU)
        for overrides in ((), ("training.micro_batch_rows=4",))
    )
    assert whole is not None
    assert limited is not None
    assert whole.memory_bytes - limited.memory_bytes == pytest.approx((8 * 2 * 2 - 4) * 1e9)
    assert whole.disk_bytes == limited.disk_bytes > 0


def test_unknown_images_give_no_hours_and_a_missing_backbone_no_estimate(
    recipe_file: Path, unit_cost: None
) -> None:
    unknown = estimate(recipe(recipe_file), recipe_file.parent, None, CPU)
    assert unknown is not None
    assert unknown.hours is None
    absent = recipe(recipe_file, "backbone.weights=absent.safetensors")
    assert estimate(absent, recipe_file.parent, COUNTS, CPU) is None


def test_a_measured_cost_grows_with_the_number_of_blocks() -> None:
    costs = [
        measured_cost(TINY_BACKBONE.model_copy(update={"layers": layers}), "float32", False, CPU)
        for layers in (2, 8)
    ]
    for cost in costs:
        assert min(cost.training_s, cost.prediction_s, cost.saved_bytes) > 0
    assert costs[1].saved_bytes > 2 * costs[0].saved_bytes
    recomputed = measured_cost(TINY_BACKBONE.model_copy(update={"layers": 8}), "float32", True, CPU)
    assert recomputed.saved_bytes < costs[1].saved_bytes


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


def test_images_are_counted_by_part_without_opening_one(image_folder: Path, tmp_path: Path) -> None:
    data = DataSettings(kind="imagefolder", path=image_folder.name)
    assert image_counts(data, image_folder.parent) == ImageCounts(54, 6, 18)
    limited = data.model_copy(update={"at_most": {"train": 20}})
    assert image_counts(limited, image_folder.parent) == ImageCounts(20, 6, 18)
    validated = data.model_copy(update={"split": "lesion-best-epoch"})
    assert image_counts(validated, image_folder.parent) == ImageCounts(49, 6, 18)
    paper = read_recipe(find_recipe("ham10000"), AdapterRecipe).data
    assert image_counts(paper, tmp_path) == ImageCounts(8_012, 0, 2_003)
    assert image_counts(DataSettings(kind="imagefolder", path="absent"), tmp_path) is None

"""Costs: operations against a count by hand, rows and steps of runs."""

from pathlib import Path

import pytest

from eulerlora.methods.registry import DEFAULT_METHOD
from eulerlora.settings import AdapterSettings, BackboneSettings
from tests.conftest import TINY_BACKBONE
from tests.training.synthetic_runs import finish
from training.recipe.schema import NO_ADAPTERS
from training.tables.costs import cost_of, operations
from training.tables.runs import TableRun, runs_of
from training.tables.table import read_table

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
    counted = operations(DEEP, NO_ADAPTERS, 7, DEFAULT_METHOD, True, 1)
    assert counted.prediction == pytest.approx(expected, rel=1e-6)
    assert 2.6 < counted.training / counted.prediction < 3  # weights and inputs, backward


def test_frozen_weights_save_a_third_of_the_operations_of_a_step() -> None:
    adapters = operations(BackboneSettings(layers=4), ONE_ADAPTER, 7, DEFAULT_METHOD, False, 1)
    whole = operations(BackboneSettings(layers=4), NO_ADAPTERS, 7, DEFAULT_METHOD, True, 1)
    assert 1.7 < adapters.training / adapters.prediction < 2.1
    assert adapters.training < 0.75 * whole.training


@pytest.mark.parametrize(
    ("variant", "samples", "rows", "rows_per_image", "members"),
    [("single", 1, 1, 1, 1), ("eulerlora-2", 1, 2, 2, 1), ("eulerlora-2", 4, 8, 2, 1),
     ("eulerlora-1-four-samples", 4, 4, 4, 1), ("explicit-4", 1, 4, 1, 4),
     ("snapshots-4", 1, 4, 1, 4)],
)  # fmt: skip
def test_rows_and_steps_follow_from_the_run(
    tmp_path: Path, variant: str, samples: int, rows: int, rows_per_image: int, members: int
) -> None:
    run = run_of(tmp_path, variant)
    cost = cost_of(run.configs(), run.recipe, samples)
    assert cost.rows_per_answer == rows
    assert cost.rows == members * 320 * rows_per_image
    assert (cost.steps, cost.seconds) == (members * 10, members * 40.0)
    assert run.hours == pytest.approx(members * 40 / 3600)
    single = run_of(tmp_path / "single", "single")
    one = cost_of(single.configs(), single.recipe, 1).answer_flops
    assert (rows == 1) == (cost.answer_flops == one)
    assert cost.answer_flops >= 0.9 * one

"""The tables and the published results in them.

The runs of a table, their status, and their inputs, which are read before any run.
"""

import shutil
from pathlib import Path

import pytest

from eulerlora.methods.registry import method_type
from eulerlora_contract.errors import CheckpointError, DataError, SettingsError
from eulerlora_contract.sampling import Options
from eulerlora_contract.settings import validated
from eulerlora_lab.tables.results import METRIC_NAMES
from eulerlora_lab.tables.table import (
    ResultTable,
    TableRow,
    TableRun,
    ood_index,
    read_inputs,
    read_table,
    runs_of,
    table_names,
)
from lab.tests.tables.synthetic_runs import finish
from tests.conftest import DET
from training.adaptation.train import state_file
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe

LORA, NO_ROW = "lora-20 det", "lora-20 stoch"
PAPER_TABLES = ("cifar10", "cifar100", "ham10000", "ood")
PAPER_SEEDS = (0, 42, 1206, 2205, 25008)  # appendix "Random Seeds and Reporting Protocol"
STUDIES = ("overfitting-1500", "overfitting-all")
METHODS = ("cifar10-methods", "ham10000-methods")


def rows(name: str) -> dict[tuple[str, str], TableRow]:
    return {
        (row.variant, row.options.mode): row
        for row in read_table(name).rows
        if row.variant is not None and row.options is not None
    }


@pytest.mark.parametrize("name", table_names())
def test_every_table_is_valid_and_its_recipe_gives_its_rows(name: str) -> None:
    table = read_table(name)
    assert set(table.metrics) <= METRIC_NAMES.keys()
    assert len(rows(name)) == len(table.arms)
    for row in table.rows:
        assert row.paper.keys() in ({}.keys(), set(table.metrics))
        assert not row.paper or name in PAPER_TABLES
    for arm in table.arms.values():
        recipe = read_recipe(table.recipe_path, AdapterRecipe, variant=arm.variant)
        sampled = method_type(recipe.method).is_sampled(recipe.adapters)
        evaluated = recipe.evaluation
        assert sampled or evaluated.views > 1 or arm.options.mode == "det", arm
        sampling = evaluated.samples, evaluated.sampler, evaluated.views
        assert arm.options in (DET, Options("stoch", *sampling, "float32"))
        assert table.ood is None or ood_index(table.ood, recipe) is not None


@pytest.mark.parametrize("name", [*PAPER_TABLES, *STUDIES, "ham10000-compact"])
def test_comparisons_have_the_seeds_and_both_modes_of_the_paper(name: str) -> None:
    assert read_table(name).seeds == PAPER_SEEDS
    trained = [variant for variant, _ in rows(name) if variant.startswith("eulerlora")]
    assert trained
    assert all((variant, mode) in rows(name) for variant in trained for mode in ("det", "stoch"))


@pytest.mark.parametrize("name", STUDIES)
def test_the_endpoints_of_a_study_are_those_of_its_protocol(name: str) -> None:
    table = read_table(name)
    primary, *_ = table.differences()
    assert primary is table.primary
    assert (primary.metrics, primary.arm, primary.minus) == (
        ("nll",), "eulerlora-1 stoch", "lora-20-sampled det"
    )  # fmt: skip
    tested = [
        (metric, difference.arm, difference.minus)
        for difference in table.differences()
        for metric in difference.metrics
    ]
    assert len(tested) == len(set(tested)) == 45
    assert not table.differences(["lora-20-best-epoch", "lora-20-dropout"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rows": [{"method": "SNGP"}]}, "rows.0"),
        ({"rows": [{"method": "a", "variant": "b"}]}, "rows.0"),
        ({"rows": [{"method": "a", "variant": "b", "options": {"mode": "det"}}]}, "samples"),
        ({"primary": {"metrics": ["nll"], "arm": NO_ROW, "minus": LORA}}, "lora-20 stoch"),
        ({"primary": {"metrics": ["nll", "ece"], "arm": LORA, "minus": LORA}}, "primary"),
        ({"secondary": [{"metrics": ["auroc"], "arm": LORA, "minus": LORA}]}, "auroc"),
        ({"reference": {"metrics": ["nll"], "minus": NO_ROW}}, "lora-20 stoch"),
    ],
)
def test_an_invalid_table_is_an_error_with_its_key(change: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        validated(ResultTable, read_table("cifar10").model_dump() | change)


def first_run(folder: Path, *overrides: str) -> TableRun:
    return runs_of(read_table("ham10000"), [0], overrides, folder)[0]


def test_every_variant_of_every_seed_has_a_separate_folder(tmp_path: Path) -> None:
    table = read_table("ham10000")
    table_runs = runs_of(table, [42, 0], ["training.epochs=30"], tmp_path)
    assert [run.name for run in table_runs] == [
        f"ham10000-paper/{variant}/seed-{seed}" for seed in (42, 0) for variant in table.variants
    ]
    assert [run.out for run in table_runs] == [tmp_path / run.name for run in table_runs]
    assert [(run.recipe.seed, run.recipe.variant) for run in table_runs] == [
        (seed, variant) for seed in (42, 0) for variant in table.variants
    ]
    assert all(run.recipe.training.epochs == 30 for run in table_runs)


def test_a_run_is_new_then_begun_then_trained_then_finished(tmp_path: Path) -> None:
    run = first_run(tmp_path)
    assert run.status == "new"
    run.out.parent.mkdir(parents=True)
    state_file(run.out).touch()
    assert run.status == "begun"
    state_file(run.out).unlink()
    finish(run)
    (run.out / "report/report.json").rename(tmp_path / "report.json")
    assert run.status == "trained"
    (tmp_path / "report.json").rename(run.out / "report/report.json")
    assert run.status == "finished"


def test_a_run_may_be_continued_only_with_its_settings(tmp_path: Path) -> None:
    first_run(tmp_path).check()
    finish(first_run(tmp_path, "training.epochs=30", "training.batch_size=8"))
    first_run(tmp_path, "training.batch_size=8", "training.epochs=30", "seed=7").check()
    equal_to_recipe = ("training.beta=0.9991", "training.epochs=30", "training.batch_size=8")
    first_run(tmp_path, *equal_to_recipe).check()
    with pytest.raises(DataError, match="seed-0"):
        first_run(tmp_path, "training.epochs=30").check()


@pytest.mark.parametrize(
    ("table", "override", "named"),
    [
        ("ham10000", "evaluation.samples=8", "evaluation.samples"),
        ("ham10000", "evaluation.views=8", "evaluation.views"),
        ("ham10000", "evaluation.sampler=balanced", "evaluation.sampler"),
        ("ood", "evaluation.ood=[]", "svhn"),
    ],
)
def test_overrides_that_leave_a_row_without_results_are_refused(
    tmp_path: Path, table: str, override: str, named: str
) -> None:
    with pytest.raises(SettingsError, match=named):
        runs_of(read_table(table), [0], [override], tmp_path)


@pytest.mark.parametrize(
    ("broken", "override", "error", "named"),
    [
        ("data/train/red/03.png", "seed=0", DataError, "train/red/03.png"),
        ("data/other/3.png", "seed=0", DataError, "other/3.png"),
        ("backbone.safetensors", "seed=0", CheckpointError, r"backbone\.safetensors"),
        (None, "outliers.path=strange", DataError, "strange"),
    ],
)
def test_an_invalid_input_is_an_error_before_any_run(
    recipe_file: Path, image_folder: Path, broken: str | None, override: str,
    error: type[Exception], named: str,
) -> None:  # fmt: skip
    folder = recipe_file.parent
    data = Path(shutil.copytree(image_folder, folder / "data"))
    if broken is not None:
        (folder / broken).write_bytes(b"broken")
    with pytest.raises(error, match=named):
        read = read_recipe(recipe_file, AdapterRecipe, [override])
        read_inputs([TableRun(recipe_file, read, folder)], data)


def test_a_damaged_config_and_one_without_a_recipe_are_errors(tmp_path: Path) -> None:
    out = finish(first_run(tmp_path))
    config = first_run(tmp_path).config()
    (out / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        first_run(tmp_path).check()
    (out / "config.json").write_text(config.model_copy(update={"provenance": {}}).model_dump_json())
    with pytest.raises(DataError, match="seed-0: expected a recipe"):
        first_run(tmp_path).check()

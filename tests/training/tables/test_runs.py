"""The runs of a table, their status, and their inputs, which are read before any run."""

import shutil
from pathlib import Path

import pytest

from eulerlora.checkpoint.files import CONFIG_FILE
from eulerlora_client.errors import CheckpointError, DataError, SettingsError
from tests.training.synthetic_runs import finish
from training.adaptation.train import REPORT, state_file
from training.evaluation.report_schema import JSON
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe
from training.tables.runs import TableRun, read_inputs, runs_of
from training.tables.table import read_table


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
    (run.out / REPORT / JSON).rename(tmp_path / JSON)
    assert run.status == "trained"
    (tmp_path / JSON).rename(run.out / REPORT / JSON)
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
        ("ood", "evaluation.ood=[]", "svhn"),
        ("ham10000", "training.epoch=1", "training.epoch"),
        ("ham10000", "adapters.rank=5", "min_rank"),
        ("ham10000", "backbone.weights=1", "backbone.weights"),
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
    (out / CONFIG_FILE).write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        first_run(tmp_path).check()
    (out / CONFIG_FILE).write_text(config.model_copy(update={"provenance": {}}).model_dump_json())
    with pytest.raises(DataError, match="seed-0: expected a recipe"):
        first_run(tmp_path).check()

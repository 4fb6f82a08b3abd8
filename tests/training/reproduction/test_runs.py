"""The runs of a table and their status."""

from pathlib import Path

import pytest

from eulerlora.checkpoint.files import CONFIG
from eulerlora.errors import CheckpointError, DataError, SettingsError
from tests.training.synthetic_runs import finish
from training.adaptation.train import REPORT, state_file
from training.evaluation.report_schema import JSON
from training.reproduction.runs import TableRun, runs_of
from training.reproduction.table import read_table


def first_run(folder: Path, *overrides: str) -> TableRun:
    return runs_of(read_table("ham10000"), [0], overrides, folder)[0]


def test_every_variant_of_every_seed_has_a_separate_folder(tmp_path: Path) -> None:
    table = read_table("ham10000")
    runs = runs_of(table, [42, 0], ["training.epochs=30"], tmp_path)
    assert [run.name for run in runs] == [
        f"ham10000-paper/{variant}/seed-{seed}" for seed in (42, 0) for variant in table.variants
    ]
    assert [run.out for run in runs] == [tmp_path / run.name for run in runs]
    assert [(run.recipe.seed, run.recipe.variant) for run in runs] == [
        (seed, variant) for seed in (42, 0) for variant in table.variants
    ]
    assert all(run.recipe.training.epochs == 30 for run in runs)


def test_the_ood_table_shares_the_runs_of_cifar10(tmp_path: Path) -> None:
    cifar10, ood = (
        {run.out: run.recipe for run in runs_of(read_table(name), [0, 42], [], tmp_path)}
        for name in ("cifar10", "ood")
    )
    assert ood
    assert ood.items() <= cifar10.items()


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


def test_a_run_made_with_other_settings_is_refused(tmp_path: Path) -> None:
    first_run(tmp_path).check()
    finish(first_run(tmp_path))
    first_run(tmp_path).check()
    with pytest.raises(
        DataError, match="seed-0: expected a run with the given settings, got one with"
    ):
        first_run(tmp_path, "training.learning_rate=3e-4").check()


def test_the_order_of_overrides_does_not_matter(tmp_path: Path) -> None:
    finish(first_run(tmp_path, "training.epochs=30", "training.batch_size=8"))
    first_run(tmp_path, "training.batch_size=8", "training.epochs=30").check()
    first_run(tmp_path, "training.epochs=30", "training.batch_size=8", "seed=7").check()


@pytest.mark.parametrize("override", ["training.epochs=65", "training.beta=0.9991"])
def test_an_override_equal_to_the_recipe_is_accepted(tmp_path: Path, override: str) -> None:
    finish(first_run(tmp_path))
    first_run(tmp_path, override).check()


def test_a_damaged_config_is_an_error_with_its_path(tmp_path: Path) -> None:
    out = finish(first_run(tmp_path))
    (out / CONFIG).write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        first_run(tmp_path).check()


def test_a_checkpoint_without_a_recipe_is_refused(tmp_path: Path) -> None:
    out = finish(first_run(tmp_path))
    config = first_run(tmp_path).config()
    (out / CONFIG).write_text(config.model_copy(update={"provenance": {}}).model_dump_json())
    with pytest.raises(
        DataError, match=r"seed-0: expected a recipe .*, got an invalid one \(.*name"
    ):
        first_run(tmp_path).check()


@pytest.mark.parametrize(
    ("table", "override", "message"),
    [
        (
            "ham10000",
            "evaluation.samples=8",
            "expected evaluation.samples = 4 as in the table, got 8",
        ),
        ("ood", "evaluation.ood=[]", "expected svhn in evaluation.ood"),
        ("ham10000", "training.epoch=1", "training.epoch"),
        ("ham10000", "adapters.rank=5", "min_rank"),
    ],
)
def test_overrides_that_leave_a_row_without_results_are_refused(
    tmp_path: Path, table: str, override: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        runs_of(read_table(table), [0], [override], tmp_path)

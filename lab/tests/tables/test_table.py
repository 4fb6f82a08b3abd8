"""The tables and the published results in them.

The runs of a table, their status, and their inputs, which are read before any run.
"""

import shutil
from pathlib import Path

import pytest

from eulerlora.methods.registry import method_type
from eulerlora_contract.errors import CheckpointError, DataError, SettingsError
from eulerlora_contract.sampling import MODES, Options
from eulerlora_contract.settings import validated
from eulerlora_lab.tables.table import ResultTable, TableRun, read_table, runs_of, table_names
from lab.tests.tables.synthetic_runs import finish
from tests.conftest import DET
from tests.program import refusal
from training.adaptation.train import state_file
from training.reporting.tables import METRICS, OOD_METRICS

LORA, NO_ROW = "lora-20 det", "lora-20 stoch"
PAPER_TABLES = ("cifar10", "cifar100", "ham10000", "ood")
PAPER_SEEDS = (0, 42, 1206, 2205, 25008)  # appendix "Random Seeds and Reporting Protocol"
STUDIES = ("overfitting-1500", "overfitting-all")
METHODS = ("cifar10-methods", "ham10000-methods")


@pytest.mark.parametrize("name", table_names())
def test_every_table_is_valid_and_its_recipe_gives_its_rows(name: str, tmp_path: Path) -> None:
    table = read_table(name)
    assert set(table.metrics) <= {*METRICS, *OOD_METRICS}
    assert len(table.arms) == sum(row.variant is not None for row in table.rows)
    for row in table.rows:
        assert row.paper.keys() in ({}.keys(), set(table.metrics))
        assert not row.paper or name in PAPER_TABLES
    recipes = {run.recipe.variant: run.recipe for run in runs_of(table, [0], [], tmp_path)}
    for arm in table.arms.values():
        recipe = recipes[arm.variant]
        sampled = method_type(recipe.method).is_sampled(recipe.adapters)
        evaluated = recipe.evaluation
        assert sampled or evaluated.views > 1 or arm.options.mode == "det", arm
        sampling = evaluated.samples, evaluated.sampler, evaluated.views
        assert arm.options in (DET, Options("stoch", *sampling, "float32"))


@pytest.mark.parametrize("name", [*PAPER_TABLES, *STUDIES, "ham10000-compact"])
def test_comparisons_have_the_seeds_and_both_modes_of_the_paper(name: str) -> None:
    table = read_table(name)
    assert table.seeds == PAPER_SEEDS
    trained = [variant for variant in table.variants if variant.startswith("eulerlora")]
    assert trained
    assert all(f"{variant} {mode}" in table.arms for variant in trained for mode in MODES)


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
    ("broken", "override", "named"),
    [
        ("train/red/03.png", "seed=0", "train/red/03.png"),
        ("other/3.png", 'evaluation.ood=[{kind = "images", path = "other"}]', "other/3.png"),
        ("backbone.safetensors", "seed=0", "backbone.safetensors"),
        (None, 'outliers={kind = "images", path = "strange", weight = 0.5}', "strange"),
    ],
)
def test_an_invalid_input_is_an_error_before_any_run(
    on_tiny_data: list[str], image_folder: Path, tmp_path: Path,
    broken: str | None, override: str, named: str,
) -> None:  # fmt: skip
    source, data = Path(on_tiny_data[1]), tmp_path / "data"
    shutil.copytree(image_folder, data)
    shutil.copy(source / "backbone.safetensors", data)
    if broken is not None:
        (data / broken).write_bytes(b"broken")
    settings = [word.replace(str(source), str(data)) for word in on_tiny_data]
    out = tmp_path / "runs"
    arguments = ("ham10000-scale-check", "--out", out, *settings, "--set", override)
    assert named in refusal("reproduce", *arguments)
    assert not out.exists()


def test_a_damaged_config_and_one_without_a_recipe_are_errors(tmp_path: Path) -> None:
    out = finish(first_run(tmp_path))
    config = first_run(tmp_path).config()
    (out / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        first_run(tmp_path).check()
    (out / "config.json").write_text(config.model_copy(update={"provenance": {}}).model_dump_json())
    with pytest.raises(DataError, match="seed-0: expected a recipe"):
        first_run(tmp_path).check()

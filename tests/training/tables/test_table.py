"""The tables and the published results in them."""

import pytest

from eulerlora.methods.registry import method_type
from eulerlora_client.errors import SettingsError
from eulerlora_client.settings import validated
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe
from training.tables.results import METRIC_NAMES
from training.tables.runs import ood_index
from training.tables.table import ResultTable, TableRow, read_table, table_names

LORA = {"variant": "lora-20", "mode": "det"}
NO_ROW = {"variant": "lora-20", "mode": "stoch"}
PAPER_TABLES = ("cifar10", "cifar100", "ham10000", "ood")
PAPER_SEEDS = (0, 42, 1206, 2205, 25008)  # appendix "Random Seeds and Reporting Protocol"
STUDIES = ("overfitting-1500", "overfitting-all")
METHODS = ("cifar10-methods", "ham10000-methods")


def rows(name: str) -> dict[tuple[str, str], TableRow]:
    """Returns the rows of runs."""
    return {
        (row.variant, row.mode): row
        for row in read_table(name).rows
        if row.variant is not None and row.mode is not None
    }


@pytest.mark.parametrize("name", table_names())
def test_every_table_is_valid_and_its_recipe_gives_its_rows(name: str) -> None:
    table = read_table(name)
    assert set(table.metrics) <= METRIC_NAMES.keys()
    assert len(rows(name)) == len(table.arms)
    for row in table.rows:
        assert row.paper.keys() in ({}.keys(), set(table.metrics))
        assert not row.paper or name in PAPER_TABLES
    for row in rows(name).values():
        recipe = read_recipe(table.recipe_path, AdapterRecipe, variant=row.variant)
        sampled = recipe.posterior is not None or method_type(recipe.method).is_sampled(
            recipe.adapters
        )
        assert sampled or recipe.evaluation.views > 1 or row.mode == "det", row
        assert row.samples == (recipe.evaluation.samples if row.mode == "stoch" else 1), row
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
    assert (primary.metrics, primary.arm.name, primary.minus.name) == (
        ("nll",), "eulerlora-1 stoch", "lora-20-sampled det"
    )  # fmt: skip
    tested = [
        (metric, difference.arm.name, difference.minus.name)
        for difference in table.differences()
        for metric in difference.metrics
    ]
    assert len(tested) == len(set(tested)) == 45
    assert not table.differences(["lora-20-best-epoch", "lora-20-dropout"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"metric": ["ece"]}, "metric"),
        ({"rows": [{"method": "SNGP"}]}, "rows.0"),
        ({"rows": [{"method": "a", "variant": "b"}]}, "rows.0"),
        ({"seeds": []}, "seeds:"),
        ({"seeds": [-1]}, "seeds.0:"),
        ({"primary": {"metrics": ["nll"], "arm": NO_ROW, "minus": LORA}}, "lora-20 stoch"),
        ({"primary": {"metrics": ["nll", "ece"], "arm": LORA, "minus": LORA}}, "primary"),
        ({"secondary": [{"metrics": ["auroc"], "arm": LORA, "minus": LORA}]}, "auroc"),
        ({"reference": {"metrics": ["nll"], "minus": NO_ROW}}, "lora-20 stoch"),
    ],
)
def test_an_invalid_table_is_an_error_with_its_key(change: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        validated(ResultTable, read_table("cifar10").model_dump() | change)

"""The tables and the published results in them."""

import pytest

from eulerlora.errors import SettingsError
from eulerlora.methods.settings import is_sampled
from eulerlora.validation import validated
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe
from training.reproduction.runs import ood_index
from training.reproduction.table import Arm, Table, TableRow, read_table, table_names
from training.results.metrics_table import METRIC_NAMES

OTHER_ROW = {
    "metrics": ["nll"],
    "arm": {"variant": "lora-20", "mode": "stoch"},
    "minus": {"variant": "lora-20", "mode": "det"},
}
TWO_METRICS = OTHER_ROW | {"metrics": ["nll", "ece"]}
PAPER_TABLES = ("cifar10", "cifar100", "ham10000", "ood")
PAPER_SEEDS = (0, 42, 1206, 2205, 25008)  # appendix "Random Seeds and Reporting Protocol"
STUDIES = ("overfitting-1500", "overfitting-all")
COMPACT_TABLES = ("cifar10-scale-check", "ham10000-scale-check", "ham10000-compact")
METHODS = ("cifar10-methods", "ham10000-methods")
CHOICES = ("dermoscopy-choices",)


def rows(name: str) -> dict[tuple[str, str], TableRow]:
    """Returns the rows of runs."""
    return {
        (row.variant, row.mode): row
        for row in read_table(name).rows
        if row.variant is not None and row.mode is not None
    }


def test_all_tables_exist() -> None:
    assert table_names() == sorted([*PAPER_TABLES, *COMPACT_TABLES, *STUDIES, *CHOICES, *METHODS])


@pytest.mark.parametrize("name", table_names())
def test_every_table_is_valid_and_its_recipe_gives_its_rows(name: str) -> None:
    table = read_table(name)
    assert set(table.metrics) <= METRIC_NAMES.keys()
    assert len(rows(name)) == len(table.arms)
    for row in table.rows:
        assert row.paper.keys() in ({}.keys(), set(table.metrics))
    for row in rows(name).values():
        recipe = read_recipe(table.recipe_path, AdapterRecipe, variant=row.variant)
        sampled = recipe.posterior is not None or is_sampled(recipe.method, recipe.adapters)
        assert sampled or row.mode == "det", row
        assert row.samples == (recipe.evaluation.samples if row.mode == "stoch" else 1), row
        assert table.ood is None or ood_index(table.ood, recipe) is not None


@pytest.mark.parametrize("name", [*PAPER_TABLES, *COMPACT_TABLES, *STUDIES, *METHODS])
def test_a_comparison_has_both_modes_of_every_stochastically_trained_method(
    name: str,
) -> None:
    trained = [variant for variant, _ in rows(name) if variant.startswith("eulerlora")]
    assert trained
    assert all((variant, mode) in rows(name) for variant in trained for mode in ("det", "stoch"))


@pytest.mark.parametrize("name", [*PAPER_TABLES, *STUDIES, "ham10000-compact"])
def test_comparisons_have_the_five_seeds_of_the_paper(name: str) -> None:
    assert read_table(name).seeds == PAPER_SEEDS


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_every_published_row_of_the_paper_is_in_its_table(name: str) -> None:
    """Compares the numbers of rows: published means of accuracy or AUROC."""
    methods = {"cifar10": 13, "cifar100": 12, "ham10000": 11, "ood": 6}
    assert sum(bool(row.paper) for row in read_table(name).rows) == methods[name]


@pytest.mark.parametrize("name", METHODS)
def test_all_methods_are_compared_with_one_row_in_one_family(name: str) -> None:
    table = read_table(name)
    assert table.endpoints is not None
    assert table.endpoints.primary is None
    reference = Arm(variant="eulerlora-2", mode="stoch")
    assert {difference.minus for difference in table.family} == {reference}
    assert {d.arm for d in table.family} == set(table.arms) - {reference}


def test_snapshot_results_that_the_paper_quotes_for_cifar_are_noted() -> None:
    for name in ("cifar10", "cifar100"):
        (row,) = [row for row in read_table(name).rows if row.method == "Snapshot ensemble"]
        assert "five times too large" in row.note
        assert row.source == "LoRA-Ensemble"


@pytest.mark.parametrize(
    ("name", "variant", "mode", "metric", "published"),
    [
        ("cifar10", "eulerlora-2", "det", "accuracy", (96.10, 0.05)),
        ("cifar10", "eulerlora-2", "det", "nll", (0.116, 0.001)),
        ("cifar10", "eulerlora-2", "stoch", "macro_f1", (95.93, 0.08)),
        ("cifar10", "eulerlora-1", "det", "ece", (0.009, 0.002)),
        ("cifar10", "lora-20", "det", "accuracy", (94.66, 0.14)),
        ("cifar10", "ensemble-8x16", "det", "brier", (0.064, 0.000)),
        ("cifar10", "ensemble-20x2", "det", "accuracy", (95.43, 0.05)),
        ("cifar100", "eulerlora-2", "det", "ece", (0.013, 0.002)),
        ("cifar100", "eulerlora-2", "stoch", "ece", (0.058, 0.002)),
        ("cifar100", "lora-20", "det", "accuracy", (79.6, 0.2)),
        ("cifar100", "ensemble-8x16", "det", "accuracy", (82.5, 0.1)),
        ("ham10000", "eulerlora-2", "det", "accuracy", (89.6, 0.3)),
        ("ham10000", "eulerlora-2", "stoch", "nll", (0.346, 0.009)),
        ("ham10000", "lora-20", "det", "macro_f1", (70.7, 1.3)),
        ("ham10000", "ensemble-4x16", "det", "accuracy", (88.0, 0.2)),
        ("ood", "eulerlora-2", "stoch", "auroc", (95.22, 0.24)),
        ("ood", "eulerlora-2", "det", "fpr_at_95_tpr", (39.09, 3.10)),
        ("ood", "lora-20", "det", "auprc", (90.74, 3.94)),
        ("cifar100", "snapshots-16", "det", "brier", (1.614, 0.007)),
        ("ham10000", "explicit-16", "det", "nll", (0.536, 0.007)),
        ("ham10000", "l2", "det", "macro_f1", (50.7, 3.9)),
    ],
)
def test_headline_results_are_the_published_ones(
    name: str, variant: str, mode: str, metric: str, published: tuple[float, float]
) -> None:
    assert rows(name)[variant, mode].paper[metric] == published


def test_rows_that_the_paper_lacks_have_no_published_results() -> None:
    without = {key for key, row in rows("ham10000").items() if not row.paper}
    assert without == {
        ("ensemble-20x2", "det"), ("eulerlora-1", "det"), ("eulerlora-1", "stoch")
    }  # fmt: skip
    for name in set(table_names()) - set(PAPER_TABLES):
        assert not any(row.paper for row in read_table(name).rows)


def test_variants_are_distinct_and_in_the_order_of_the_rows() -> None:
    names = [row.variant for row in read_table("ham10000-scale-check").rows]
    assert len(set(names)) < len(names)
    assert read_table("ham10000-scale-check").variants == (
        "lora-20", "eulerlora-1", "ensemble-20x2", "eulerlora-2"
    )  # fmt: skip


@pytest.mark.parametrize("name", STUDIES)
def test_the_endpoints_of_a_study_are_those_of_its_protocol(name: str) -> None:
    endpoints = read_table(name).endpoints
    assert endpoints is not None
    primary = endpoints.primary
    assert primary is not None
    assert (primary.metrics, primary.arm.name, primary.minus.name) == (
        ("nll",), "eulerlora-1 stoch", "lora-20-sampled det"
    )  # fmt: skip
    tested = [
        (metric, difference.arm.name, difference.minus.name)
        for difference in (primary, *endpoints.secondary)
        for metric in difference.metrics
    ]
    assert len(tested) == len(set(tested)) == 45


def test_an_unknown_table_is_an_error_that_lists_the_tables() -> None:
    with pytest.raises(SettingsError, match=r"expected one of the tables cifar10, .* got 'cifar'"):
        read_table("cifar")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": ["ece"]}, "unknown key metric;"),
        ({"rows": [{"method": "SNGP"}]}, "rows.0: expected a variant or published results for"),
        ({"rows": [{"method": "a", "variant": "b"}]}, "rows.0: expected variant and mode, or"),
        ({"seeds": []}, "seeds:"),
        ({"seeds": [-1]}, "seeds.0:"),
        ({"endpoints": {"primary": OTHER_ROW}}, "expected endpoints of rows of the table, got lo"),
        ({"endpoints": {"primary": TWO_METRICS}}, "endpoints: expected one metric in primary"),
    ],
)
def test_an_invalid_table_is_an_error_with_its_key(change: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        validated(Table, read_table("cifar10").model_dump() | change)
    assert str(caught.value).startswith(message)

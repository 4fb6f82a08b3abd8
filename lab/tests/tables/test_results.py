"""Result tables over seeds, from synthetic runs.

Costs: operations against a count by hand, rows and steps of runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eulerlora.methods.registry import DEFAULT_METHOD
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import BackboneSettings
from eulerlora_lab.tables.results import operations
from eulerlora_lab.tables.table import read_table, runs_of
from lab.tests.tables.synthetic_runs import finish
from tests.conftest import TINY_BACKBONE
from tests.program import succeed
from training.recipe.schema import NO_ADAPTERS

ACCURACIES = {0: 0.901, 42: 0.913, 1206: 0.887}
METHODS = "ham10000-methods"


def printed(out: Path, table: str, *variants: str, seeds: Sequence[int] = (0,)) -> str:
    """What `eulerlora reproduce` prints of finished runs."""
    chosen = [part for name in variants for part in ("--variant", name)]
    listed = ",".join(map(str, seeds))
    return succeed("reproduce", table, "--out", out, "--seeds", listed, *chosen).out


def finished(
    out: Path, table: str, *variants: str, seeds: Sequence[int] = (0,), **facts: Any
) -> str:
    """What it prints of runs that `finish` makes with the facts."""
    for run in runs_of(read_table(table), seeds, [], out, variants):
        finish(run, **facts)
    return printed(out, table, *variants, seeds=seeds)


def cells(text: str) -> list[dict[str, str]]:
    """The rows of the first table of a text by column title."""
    _, bar, table = text.partition("\n|")
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in (bar + table).partition("\n\n")[0].splitlines()[1:]
    ]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def further(text: str) -> dict[str, list[dict[str, str]]]:
    """The tables that follow the first one by title."""
    return {part.splitlines()[0]: cells(part) for part in text.split("### ")[1:]}


def lines(text: str, method: str, mode: str = "det") -> list[dict[str, str]]:
    """The row of a method, then the published row if there is one."""
    rows = cells(text)
    index = next(
        index
        for index, row in enumerate(rows)
        if row["method"] == method and row["mode"].startswith(mode)
    )
    return [rows[index], *(row for row in rows[index + 1 : index + 2] if not row["method"])]


def notes(text: str) -> list[str]:
    return [line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")]


def test_results_over_seeds_are_mean_and_sample_standard_deviation(tmp_path: Path) -> None:
    for run in runs_of(read_table("ham10000"), [*ACCURACIES], [], tmp_path):
        accuracy = ACCURACIES[run.recipe.seed]
        finish(run, {"accuracy": accuracy, "nll": accuracy / 3})
    text = printed(tmp_path, "ham10000", seeds=[*ACCURACIES])
    (ours, _) = lines(text, "EulerLoRA, 2 adapters")
    values = np.array(list(ACCURACIES.values()))
    percent = 100 * values
    assert ours["accuracy (%)"] == f"{percent.mean():.2f} ± {percent.std(ddof=1):.2f}"
    assert ours["NLL (nats)"] == f"{(values / 3).mean():.3f} ± {(values / 3).std(ddof=1):.3f}"
    assert ours["from"] == "3 seeds"


def test_rows_without_a_run_have_dashes_and_so_has_a_metric_without_a_value(
    tmp_path: Path,
) -> None:
    text = finished(tmp_path, "ham10000", "lora-20", det={"accuracy": 0.7142, "ece": None})
    (unfinished,) = lines(text, "LoRA-Ensemble, rank 20 x 2")
    titles = list(unfinished)[4:]
    assert [unfinished[title] for title in ("trained", *titles)] == ["-"] * (1 + len(titles))
    assert unfinished["from"] == "0 seeds"
    (row,) = lines(text, "LoRA, rank 20")
    assert row["from"] == "1 seed"
    assert (row["accuracy (%)"], row["ECE (10 bins)"]) == ("71.42", "-")


def test_every_row_shows_its_mode_and_the_published_results(tmp_path: Path) -> None:
    facts = {"det": {"macro_f1": 0.25}, "stoch": {"macro_f1": 0.75}}
    text = finished(tmp_path, "ham10000", **facts)
    det, stoch = (lines(text, "EulerLoRA, 2 adapters", mode) for mode in ("det", "stoch"))
    assert [row["macro-F1 (%)"] for row in (det[0], stoch[0])] == ["25.00", "75.00"]
    assert [row["mode"] for row in (det[0], stoch[0])] == ["det", "stoch, 4 samples"]
    assert (stoch[1]["accuracy (%)"], stoch[1]["ECE (10 bins)"]) == (
        "89.10 ± 0.50",
        "0.021 ± 0.003",
    )
    assert len(lines(text, "EulerLoRA, 1 adapter")) == 1
    others = finished(tmp_path, "cifar100", "single")
    (row,) = [line for line in others.splitlines() if line.startswith("| SNGP |")]
    assert "| - | paper, from LoRA-Ensemble | - | 32.20 ± 0.40 |" in row
    assert any(note.startswith("Snapshot ensemble: ") for note in notes(others))


@pytest.mark.parametrize(
    ("name", "title"),
    [("ood", "AUROC (%)"), ("ham10000-compact", "AUROC, cifar10-jpeg.tar.xz (%)")],
)
def test_a_table_shows_the_metrics_of_its_ood_set(tmp_path: Path, name: str, title: str) -> None:
    text = finished(tmp_path, name, "lora-20", det={"accuracy": 0.75, "auroc": 0.9312})
    ours, *_ = lines(text, "LoRA, rank 20")
    assert ours[title] == "93.12"
    assert ours.get("accuracy (%)", "75.00") == "75.00"


WIDE = TINY_BACKBONE.model_copy(update={"layers": 1, "width": 768})


@pytest.mark.parametrize(
    ("variant", "adapters", "classes"),
    [("eulerlora-2", 2, 10), ("eulerlora-2", 2, 1_000), ("ensemble-20x2", 2, 7),
     ("lora-20", 1, 7)],
)  # fmt: skip
def test_parameter_counts_are_those_of_the_network(
    tmp_path: Path, variant: str, adapters: int, classes: int
) -> None:
    """Adapters of rank 20 at Q, K, V and O of one block of width 768, and their heads."""
    text = finished(tmp_path, "ham10000", variant, backbone=WIDE, classes=classes)
    expected = adapters * (4 * 2 * 768 * 20 + classes * (768 + 1))
    assert f"{expected / 1e6:.2f} M" in {row["trained"] for row in cells(text)}


def test_data_seeds_backbone_and_replaced_settings_are_noted(tmp_path: Path) -> None:
    published = {"published": "ViT_B_32_Weights.IMAGENET1K_V1"}
    for folder, changes, overrides, expected in (
        ("a", published, ["training.epochs=20", "stored=float16"],
         "ViT_B_32_Weights.IMAGENET1K_V1; "
         "replaced settings: stored=float16, training.epochs=20"),
        ("b", {}, [], "of SHA-256 01234567"),
    ):  # fmt: skip
        table, out = read_table("ham10000"), tmp_path / folder
        for run in runs_of(table, (0, 42), overrides, out, ["lora-20"]):
            finish(run, **changes)
        replaced = (part for override in overrides for part in ("--set", override))
        arguments = ("--out", out, "--seeds", "0,42", "--variant", "lora-20", *replaced)
        shown = notes(succeed("reproduce", "ham10000", *arguments).out)
        assert shown[0] == "measured on HAM10000, paper split, test part"
        assert shown[1].startswith("seeds 0, 42;")
        assert f"backbone {expected}" in shown


def test_the_cost_of_every_finished_row_is_shown(tmp_path: Path) -> None:
    rows = further(finished(tmp_path, METHODS, "eulerlora-2", "single"))["Cost"]
    assert [(row["method"], row["mode"], row["rows per answer"]) for row in rows] == [
        ("Single network", "det", "1"),
        ("EulerLoRA, 2 adapters", "det", "2"),
        ("EulerLoRA, 2 adapters", "stoch, 4 samples", "8"),
    ]
    assert (rows[0]["steps"], rows[0]["hours"], rows[0]["trained rows"]) == ("10", "2.00", "57,600")
    assert rows[1]["trained rows"] == "115,200"
    assert float(rows[2]["GFLOP per answer"]) >= float(rows[1]["GFLOP per answer"])


def test_mean_logits_are_shown_for_methods_with_several_answers(tmp_path: Path) -> None:
    rows = further(finished(tmp_path, METHODS, "eulerlora-2", "single"))["Mean logits"]
    assert {row["method"] for row in rows} == {"EulerLoRA, 2 adapters"}
    assert (rows[0]["accuracy (%)"], rows[0]["NLL (nats)"]) == ("25.00", "0.250")
    assert "Mean logits" not in further(printed(tmp_path, METHODS, "single"))


def test_every_ood_set_has_a_column_for_each_score(tmp_path: Path) -> None:
    title = "Out of distribution: AUROC (%)"
    text = finished(tmp_path, METHODS, "single", seeds=(0, 42), det={"auroc": 0.7})
    (row,) = further(text)[title]
    assert row["svhn (far), MSP"] == "70.00 ± 0.00"
    assert row["monkeypox (near), feature distance"] == "90.00 ± 0.00"
    assert title not in further(finished(tmp_path, "ham10000", "lora-20"))


DEEP = TINY_BACKBONE.model_copy(update={"layers": 6})
ONE_ADAPTER = AdapterSettings(adapters=1, rank=4, min_rank=4)


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
    one_block = BackboneSettings(layers=1)

    def cost_of(folder: str, variant: str, mode: str) -> dict[str, str]:
        text = finished(tmp_path / folder, METHODS, variant, backbone=one_block)
        shown = further(text)["Cost"]
        return next(row for row in shown if row["mode"].startswith(mode))

    cost = cost_of("run", variant, "det" if samples == 1 else "stoch")
    single = cost_of("single", "single", "det")
    assert cost["rows per answer"] == f"{rows}"
    assert cost["trained rows"] == f"{members * 57_600 * rows_per_image:,}"
    assert (cost["steps"], cost["hours"]) == (f"{members * 10}", f"{members * 2:.2f}")
    answer, one = (float(row["GFLOP per answer"]) for row in (cost, single))
    assert (rows == 1) == (answer == one)
    assert answer >= 0.9 * one > 0

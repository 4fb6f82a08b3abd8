"""A table over seeds beside the paper's, from runs that nobody trained."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from eulerlora.backbone import build_backbone
from eulerlora.settings import AdapterSettings, BackboneSettings
from eulerlora.vision_transformer import AdaptedVisionTransformer
from tests.conftest import TINY_BACKBONE
from tests.training.made_up_runs import VIT_B_32, finish
from training.reporting.tables import METRICS
from training.reproduction.results import markdown_table, trained_parameters
from training.reproduction.runs import TableRun, runs_of
from training.reproduction.table import read_table

ACCURACIES = {0: 0.901, 42: 0.913, 1206: 0.887}
PAPER_S_SEEDS = (0, 42, 1206, 2205, 25008)


def runs(
    folder: Path,
    seeds: Sequence[int] = (0,),
    table: str = "ham10000",
    overrides: Sequence[str] = (),
) -> list[TableRun]:
    return runs_of(read_table(table), seeds, overrides, folder)


def lines(text: str, method: str, mode: str = "det") -> list[dict[str, str]]:
    """The line of a method and the paper's below it, if any, by the table's heads."""
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    named = [dict(zip(table[0], cells, strict=True)) for cells in table[2:]]
    at = next(
        index
        for index, each in enumerate(named)
        if each["method"] == method and each["mode"].startswith(mode)
    )
    below = named[at + 1 : at + 2]
    return [named[at], *(each for each in below if each["from"] == "paper")]


def notes(text: str) -> list[str]:
    return [line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")]


def test_figures_over_seeds_are_the_mean_and_the_standard_deviation_of_a_sample(
    tmp_path: Path,
) -> None:
    found = runs(tmp_path, list(ACCURACIES))
    for run in found:
        accuracy = ACCURACIES[run.recipe.seed]
        finish(run, {"accuracy": accuracy, "nll": accuracy / 3})
    (ours, _) = lines(markdown_table(read_table("ham10000"), found), "EulerLoRA, 2 adapters")
    values = np.array(list(ACCURACIES.values()))
    percent = 100 * values
    assert ours["accuracy (%)"] == f"{percent.mean():.2f} ± {percent.std(ddof=1):.2f}"
    assert ours["NLL (nats)"] == f"{(values / 3).mean():.3f} ± {(values / 3).std(ddof=1):.3f}"
    assert ours["from"] == "3 seeds"


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    found = runs(tmp_path)
    finish(found[0], {"accuracy": 0.7142, "ece": 0.0274})
    (ours, _) = lines(markdown_table(read_table("ham10000"), found), "LoRA, rank 20")
    assert (ours["accuracy (%)"], ours["ECE (10 bins)"]) == ("71.42", "0.027")
    assert ours["from"] == "1 seed"


def test_a_row_without_a_finished_run_is_empty_and_only_finished_ones_count(
    tmp_path: Path,
) -> None:
    found = runs(tmp_path, [0, 42])
    nothing = markdown_table(read_table("ham10000"), found)
    assert notes(nothing) == ["No run is finished yet."]
    finish(found[0])
    text = markdown_table(read_table("ham10000"), found)
    (row,) = lines(text, "LoRA-Ensemble, rank 20 x 2")
    titles = list(row)[4:]
    assert [row[title] for title in ("trained", *titles)] == ["-"] * (1 + len(titles))
    assert row["from"] == "0 seeds"
    assert lines(text, "LoRA, rank 20")[0]["from"] == "1 seed"


def test_each_row_shows_the_mode_that_it_asks_for(tmp_path: Path) -> None:
    found = runs(tmp_path)
    for run in found:
        finish(run, {"macro_f1": 0.25}, {"macro_f1": 0.75})
    text = markdown_table(read_table("ham10000"), found)
    shown = [lines(text, "EulerLoRA, 2 adapters", mode)[0] for mode in ("det", "stoch")]
    assert [each["macro-F1 (%)"] for each in shown] == ["25.00", "75.00"]
    assert [each["mode"] for each in shown] == ["det", "stoch, 4 samples"]


def test_a_table_of_ood_detection_shows_the_metrics_of_the_outside_set(tmp_path: Path) -> None:
    found = runs(tmp_path, table="ood")
    for run in found:
        finish(run, {"auroc": 0.9312}, data="CIFAR-10, paper split")
    ours, paper = lines(markdown_table(read_table("ood"), found), "LoRA, rank 20")
    assert ours["AUROC (%)"] == "93.12"
    assert paper["AUROC (%)"] == "92.96 ± 3.50"


def test_a_table_may_show_the_metrics_of_the_test_part_and_of_an_outside_set(
    tmp_path: Path,
) -> None:
    found = runs(tmp_path, table="ham10000-compact")
    for run in found:
        finish(run, {"accuracy": 0.75, "auroc": 0.9312}, data="HAM10000, lesion split")
    (ours,) = lines(markdown_table(read_table("ham10000-compact"), found), "LoRA, rank 20")
    assert ours["accuracy (%)"] == "75.00"
    assert ours["AUROC, cifar10-jpeg.tar.xz (%)"] == "93.12"


def test_the_paper_s_figures_stand_below_ours_where_it_has_them(tmp_path: Path) -> None:
    text = markdown_table(read_table("ham10000"), runs(tmp_path))
    _, paper = lines(text, "EulerLoRA, 2 adapters", "stoch")
    assert paper["accuracy (%)"] == "89.10 ± 0.50"
    assert paper["ECE (10 bins)"] == "0.021 ± 0.003"
    assert len(lines(text, "EulerLoRA, 1 adapter")) == 1


def test_a_metric_without_a_value_is_no_number(tmp_path: Path) -> None:
    table = read_table("ham10000-scale-check")
    found = runs(tmp_path, table="ham10000-scale-check")
    finish(found[0], {"macro_auroc": None})
    (row,) = lines(markdown_table(table, found), "LoRA, rank 20")
    assert row[f"{METRICS['macro_auroc']} (%)"] == "-"


@pytest.mark.parametrize(("classes", "wanted"), [(10, 2_964_500), (100, 3_102_920), (7, 2_959_886)])
def test_the_parameters_of_the_paper_s_method_are_counted_as_its_network_counts_them(
    tmp_path: Path, classes: int, wanted: int
) -> None:
    """Two adapters of rank 20 at Q, K, V and O of 12 blocks of width 768, and their heads."""
    run = runs(tmp_path)[-1]
    finish(run, classes=classes)
    assert trained_parameters(run.config()) == wanted == own_count(VIT_B_32, run, classes)
    text = markdown_table(read_table("ham10000"), [run])
    assert lines(text, "EulerLoRA, 2 adapters")[0]["trained"] == f"{wanted / 1e6:.2f} M"


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_parameters_of_other_methods_are_counted_alike(tmp_path: Path, index: int) -> None:
    run = runs(tmp_path)[index]
    finish(run, backbone=TINY_BACKBONE, published=None)
    assert trained_parameters(run.config()) == own_count(TINY_BACKBONE, run, classes=7)


def own_count(backbone: BackboneSettings, run: TableRun, classes: int) -> int:
    adapters: AdapterSettings = run.recipe.adapters
    with torch.device("meta"):
        network = AdaptedVisionTransformer(build_backbone(backbone), adapters, classes)
    return sum(each.numel() for _, each in network.adapter_parameters())


def test_runs_that_are_the_paper_s_say_so(tmp_path: Path) -> None:
    for name, data in (
        ("ham10000", "HAM10000, paper split"),
        ("cifar10", "CIFAR-10, paper split"),
        ("cifar100", "CIFAR-100, paper split"),
    ):
        found = runs(tmp_path, PAPER_S_SEEDS, name)
        for run in found:
            finish(run, data=data)
        told = notes(markdown_table(read_table(name), found))
        assert told[-1] == "backbone, data, seeds and settings are the paper's"
        assert not any("differs" in note for note in told)
        assert told[0] == f"measured on {data}, test part"
        assert told[1].startswith("seeds 0, 42, 1206, 2205, 25008;")


@pytest.mark.parametrize(
    ("changes", "overrides", "told"),
    [
        (
            {"backbone": TINY_BACKBONE, "published": None},
            ["backbone.weights=tiny.safetensors"],
            "the backbone is 2 blocks of width 16 at 32 pixels (weights 01234567)",
        ),
        (
            {"published": "ViT_B_16_Weights.IMAGENET1K_V1"},
            ["backbone.weights=ViT_B_16_Weights.IMAGENET1K_V1"],
            "the backbone is ViT_B_16_Weights.IMAGENET1K_V1",
        ),
        (
            {"data": "HAM10000, lesion split"},
            ["data.split=lesion"],
            "the data is HAM10000, lesion split",
        ),
        ({}, ["training.epochs=2", "stored=float16"], "set stored=float16, training.epochs=2"),
    ],
)
def test_each_difference_from_the_paper_is_told(
    tmp_path: Path, changes: dict[str, object], overrides: list[str], told: str
) -> None:
    found = runs(tmp_path, PAPER_S_SEEDS, overrides=overrides)
    for run in found:
        finish(run, **changes)  # type: ignore[arg-type]
    differences = [
        note for note in notes(markdown_table(read_table("ham10000"), found)) if "differs" in note
    ]
    assert differences == [f"differs from the paper: {told}"]


@pytest.mark.parametrize("seeds", [(0,), PAPER_S_SEEDS])
def test_other_or_unfinished_runs_than_the_paper_s_are_told(
    tmp_path: Path, seeds: tuple[int, ...]
) -> None:
    found = runs(tmp_path, seeds)
    for run in found[:-1]:
        finish(run)
    told = notes(markdown_table(read_table("ham10000"), found))
    assert told[-1] == (
        f"differs from the paper: {len(found) - 1} runs; its seeds are 0, 42, 1206, 2205, 25008"
    )


def test_overrides_are_told_where_the_paper_has_no_such_table_too(tmp_path: Path) -> None:
    name = "ham10000-scale-check"
    for overrides, told in (
        ([], "on "),
        (["training.epochs=3"], "differs from the recipe: set training.epochs=3"),
    ):
        found = runs(tmp_path / str(len(overrides)), table=name, overrides=overrides)
        finish(found[0])
        assert notes(markdown_table(read_table(name), found))[-1].startswith(told)

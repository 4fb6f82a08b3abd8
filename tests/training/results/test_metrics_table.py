"""Result tables over seeds, from synthetic runs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.models import vit_b_32

from eulerlora.methods.registry import build_network
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.settings import AdapterSettings, BackboneSettings
from tests.conftest import TINY_BACKBONE
from tests.training.synthetic_runs import VIT_B_32, finish
from training.reporting.tables import METRICS
from training.reproduction.runs import TableRun, runs_of
from training.reproduction.table import read_table
from training.results.costs import trained_parameters
from training.results.metrics_table import markdown_table

ACCURACIES = {0: 0.901, 42: 0.913, 1206: 0.887}
PAPER_SEEDS = (0, 42, 1206, 2205, 25008)


def runs(
    folder: Path,
    seeds: Sequence[int] = (0,),
    table: str = "ham10000",
    overrides: Sequence[str] = (),
) -> list[TableRun]:
    return runs_of(read_table(table), seeds, overrides, folder)


def lines(text: str, method: str, mode: str = "det") -> list[dict[str, str]]:
    """Returns the row of a method by column title, then the published row if there is one."""
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    rows = [dict(zip(table[0], cells, strict=True)) for cells in table[2:]]
    index = next(
        index
        for index, row in enumerate(rows)
        if row["method"] == method and row["mode"].startswith(mode)
    )
    following = rows[index + 1 : index + 2]
    return [
        rows[index],
        *(row for row in following if row["from"].startswith("paper") and not row["method"]),
    ]


def run_of(table_runs: Sequence[TableRun], variant: str) -> TableRun:
    return next(run for run in table_runs if run.recipe.variant == variant)


def notes(text: str) -> list[str]:
    return [line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")]


def test_results_over_seeds_are_mean_and_sample_standard_deviation(
    tmp_path: Path,
) -> None:
    table_runs = runs(tmp_path, list(ACCURACIES))
    for run in table_runs:
        accuracy = ACCURACIES[run.recipe.seed]
        finish(run, {"accuracy": accuracy, "nll": accuracy / 3})
    (ours, _) = lines(markdown_table(read_table("ham10000"), table_runs), "EulerLoRA, 2 adapters")
    values = np.array(list(ACCURACIES.values()))
    percent = 100 * values
    assert ours["accuracy (%)"] == f"{percent.mean():.2f} ± {percent.std(ddof=1):.2f}"
    assert ours["NLL (nats)"] == f"{(values / 3).mean():.3f} ± {(values / 3).std(ddof=1):.3f}"
    assert ours["from"] == "3 seeds"


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    table_runs = runs(tmp_path)
    finish(run_of(table_runs, "lora-20"), {"accuracy": 0.7142, "ece": 0.0274})
    (ours, _) = lines(markdown_table(read_table("ham10000"), table_runs), "LoRA, rank 20")
    assert (ours["accuracy (%)"], ours["ECE (10 bins)"]) == ("71.42", "0.027")
    assert ours["from"] == "1 seed"


def test_only_finished_runs_count(
    tmp_path: Path,
) -> None:
    table_runs = runs(tmp_path, [0, 42])
    empty = markdown_table(read_table("ham10000"), table_runs)
    assert notes(empty)[0] == "No run is finished yet."
    assert not any(note.startswith("measured on") for note in notes(empty))
    finish(run_of(table_runs, "lora-20"))
    text = markdown_table(read_table("ham10000"), table_runs)
    (row,) = lines(text, "LoRA-Ensemble, rank 20 x 2")
    titles = list(row)[4:]
    assert [row[title] for title in ("trained", *titles)] == ["-"] * (1 + len(titles))
    assert row["from"] == "0 seeds"
    assert lines(text, "LoRA, rank 20")[0]["from"] == "1 seed"


def test_every_row_shows_its_mode(tmp_path: Path) -> None:
    table_runs = runs(tmp_path)
    for run in table_runs:
        finish(run, {"macro_f1": 0.25}, {"macro_f1": 0.75})
    text = markdown_table(read_table("ham10000"), table_runs)
    shown = [lines(text, "EulerLoRA, 2 adapters", mode)[0] for mode in ("det", "stoch")]
    assert [row["macro-F1 (%)"] for row in shown] == ["25.00", "75.00"]
    assert [row["mode"] for row in shown] == ["det", "stoch, 4 samples"]


def test_an_ood_table_shows_the_metrics_of_its_set(tmp_path: Path) -> None:
    table_runs = runs(tmp_path, table="ood")
    for run in table_runs:
        finish(run, {"auroc": 0.9312}, data="CIFAR-10, paper split")
    ours, paper = lines(markdown_table(read_table("ood"), table_runs), "LoRA, rank 20")
    assert ours["AUROC (%)"] == "93.12"
    assert paper["AUROC (%)"] == "92.96 ± 3.50"


def test_a_table_can_mix_metrics_of_the_test_part_and_of_an_ood_set(
    tmp_path: Path,
) -> None:
    table_runs = runs(tmp_path, table="ham10000-compact")
    for run in table_runs:
        finish(run, {"accuracy": 0.75, "auroc": 0.9312}, data="HAM10000, lesion split")
    (ours,) = lines(markdown_table(read_table("ham10000-compact"), table_runs), "LoRA, rank 20")
    assert ours["accuracy (%)"] == "75.00"
    assert ours["AUROC, cifar10-jpeg.tar.xz (%)"] == "93.12"


def test_published_results_follow_their_row(tmp_path: Path) -> None:
    text = markdown_table(read_table("ham10000"), runs(tmp_path))
    _, paper = lines(text, "EulerLoRA, 2 adapters", "stoch")
    assert paper["accuracy (%)"] == "89.10 ± 0.50"
    assert paper["ECE (10 bins)"] == "0.021 ± 0.003"
    assert len(lines(text, "EulerLoRA, 1 adapter")) == 1


def test_an_undefined_metric_is_a_dash(tmp_path: Path) -> None:
    table = read_table("ham10000-scale-check")
    table_runs = runs(tmp_path, table="ham10000-scale-check")
    finish(table_runs[0], {"macro_auroc": None})
    (row,) = lines(markdown_table(table, table_runs), "LoRA, rank 20")
    assert row[f"{METRICS['macro_auroc']} (%)"] == "-"


@pytest.mark.parametrize(
    ("classes", "expected"), [(10, 2_964_500), (100, 3_102_920), (7, 2_959_886)]
)
def test_parameter_counts_of_the_method_equal_those_of_its_network(
    tmp_path: Path, classes: int, expected: int
) -> None:
    """Two adapters of rank 20 at Q, K, V and O of 12 blocks of width 768, and their heads."""
    run = runs(tmp_path)[-1]
    finish(run, classes=classes)
    count = trained_parameters(run.config(), run.recipe)
    assert count == expected == network_count(VIT_B_32, run, classes)
    text = markdown_table(read_table("ham10000"), [run])
    assert lines(text, "EulerLoRA, 2 adapters")[0]["trained"] == f"{expected / 1e6:.2f} M"


@pytest.mark.parametrize("variant", ["lora-20", "ensemble-4x16", "ensemble-20x2"])
def test_parameter_counts_of_other_methods_equal_those_of_their_networks(
    tmp_path: Path, variant: str
) -> None:
    run = run_of(runs(tmp_path), variant)
    finish(run, backbone=TINY_BACKBONE, published=None)
    expected = network_count(TINY_BACKBONE, run, classes=7)
    assert trained_parameters(run.config(), run.recipe) == expected


def test_the_members_of_an_ensemble_of_whole_networks_count_together(tmp_path: Path) -> None:
    run = run_of(runs(tmp_path), "explicit-16")
    finish(run)
    text = markdown_table(read_table("ham10000"), [run])
    vit = torchvision_parameters()
    expected = 16 * (vit + 7 * (VIT_B_32.width + 1))
    assert lines(text, "Explicit ensemble")[0]["trained"] == f"{expected / 1e6:.2f} M"


def torchvision_parameters() -> int:
    """Returns the number of parameters of ViT-B/32 without its head."""
    with torch.device("meta"):
        model = vit_b_32()
    model.heads = torch.nn.Identity()
    return sum(parameter.numel() for parameter in model.parameters())


def test_published_rows_without_a_method_here_name_their_source(tmp_path: Path) -> None:
    text = markdown_table(read_table("cifar100"), runs(tmp_path, table="cifar100"))
    (row,) = [line for line in text.splitlines() if line.startswith("| SNGP |")]
    assert "| - | - | paper, from LoRA-Ensemble | 32.20 ± 0.40 |" in row
    assert any(note.startswith("Snapshot ensemble: the quoted NLL and") for note in notes(text))


def network_count(backbone: BackboneSettings, run: TableRun, classes: int) -> int:
    adapters: AdapterSettings = run.recipe.adapters
    with torch.device("meta"):
        network = build_network(VisionTransformer(backbone), adapters, classes)
    return sum(parameter.numel() for _, parameter in network.adapter_parameters())


def test_runs_with_the_settings_of_the_paper_are_noted(tmp_path: Path) -> None:
    for name, data in (
        ("ham10000", "HAM10000, paper split"),
        ("cifar10", "CIFAR-10, paper split"),
        ("cifar100", "CIFAR-100, paper split"),
    ):
        table_runs = runs(tmp_path, PAPER_SEEDS, name)
        for run in table_runs:
            finish(run, data=data)
        printed = notes(markdown_table(read_table(name), table_runs))
        assert printed[-1] == "backbone, data, seeds and settings are the paper's"
        assert not any("differs" in note for note in printed)
        assert printed[0] == f"measured on {data}, test part"
        assert printed[1].startswith("seeds 0, 42, 1206, 2205, 25008;")


@pytest.mark.parametrize(
    ("changes", "overrides", "printed"),
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
        ({}, ["training.epochs=20", "stored=float16"], "set stored=float16, training.epochs=20"),
    ],
)
def test_every_difference_from_the_paper_is_noted(
    tmp_path: Path, changes: dict[str, object], overrides: list[str], printed: str
) -> None:
    table_runs = runs(tmp_path, PAPER_SEEDS, overrides=overrides)
    for run in table_runs:
        finish(run, **changes)  # type: ignore[arg-type]
    differences = [
        note
        for note in notes(markdown_table(read_table("ham10000"), table_runs))
        if "differs" in note
    ]
    assert differences == [f"differs from the paper: {printed}"]


@pytest.mark.parametrize("seeds", [(0,), PAPER_SEEDS])
def test_other_or_unfinished_runs_are_noted(tmp_path: Path, seeds: tuple[int, ...]) -> None:
    table_runs = runs(tmp_path, seeds)
    for run in table_runs[:-1]:
        finish(run)
    printed = notes(markdown_table(read_table("ham10000"), table_runs))
    finished = len(table_runs) - 1
    assert printed[-1] == (
        f"differs from the paper: {finished} runs; its seeds are 0, 42, 1206, 2205, 25008"
    )


def test_overrides_are_noted_for_tables_that_the_paper_lacks(tmp_path: Path) -> None:
    name = "ham10000-scale-check"
    for overrides, printed in (
        ([], "on "),
        (["training.epochs=3"], "differs from the recipe: set training.epochs=3"),
    ):
        table_runs = runs(tmp_path / str(len(overrides)), table=name, overrides=overrides)
        finish(table_runs[0])
        assert notes(markdown_table(read_table(name), table_runs))[-1].startswith(printed)

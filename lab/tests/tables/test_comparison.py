"""Comparisons of a table's rows: the endpoints and the files."""

import csv
import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from eulerlora_contract.errors import DataError
from eulerlora_contract.sampling import Options
from eulerlora_lab.tables.comparison import compare, comparison_markdown, write_comparison
from eulerlora_lab.tables.table import TableRun, read_table, runs_of
from lab.tests.tables.synthetic_runs import finish
from tests.conftest import DET, STOCH
from training.evaluation.comparison import EndpointResult, holm

TABLE = read_table("overfitting-1500")
SEEDS = (0, 42, 1206)
LABELS = np.arange(24) % 7
LESIONS = [f"lesion{index // 2}" for index in range(24)]
CLASSES = [f"c{index}" for index in range(7)]
SETS = [("test", "test"), ("a", "far"), ("b", "far"), ("c", "near"), ("d", "shifted")]


def compared(folder: Path, **arm: Any) -> dict[str, EndpointResult]:
    """The endpoints of `single` in mode det minus `eulerlora-2`, whose far sets have low scores.

    `arm`: of `write_predictions`, for `single`.
    """
    table = read_table("ham10000-methods")
    runs = runs_of(table, SEEDS[:2], [], folder, ["single", "eulerlora-2"])
    for run in runs:
        finish(run, data="HAM10000, lesion split")
        of_arm = arm if run.recipe.variant == "single" else arm | {"shift": 0.0, "inside": 100.0}
        write_predictions(run.out / "report", DET, STOCH, seed=run.recipe.seed, **of_arm)
    comparison = compare(table, runs)
    assert comparison is not None
    return {r.metric: r for r in comparison.secondary if r.arm == "single det"}


def test_differences_are_those_of_metrics_of_an_independent_library(tmp_path: Path) -> None:
    results = compared(tmp_path, shift=0.5)
    for index, seed in enumerate(SEEDS[:2]):
        arm, minus = probabilities_of(seed, 0.5), probabilities_of(seed)
        nll = log_loss(LABELS, arm) - log_loss(LABELS, minus)
        assert results["nll"].by_seed[index] == pytest.approx(nll)
        right = [(one.argmax(1) == LABELS).mean() for one in (arm, minus)]
        assert results["accuracy"].by_seed[index] == pytest.approx(right[0] - right[1])


def test_the_error_of_a_metric_is_that_of_lesions_where_the_file_has_them(tmp_path: Path) -> None:
    lesions, pictures = (
        compared(tmp_path / str(number), shift=0.5, lesions=lesions)["nll"].images_error
        for number, lesions in enumerate((LESIONS, [""] * 24))
    )
    assert lesions != pictures


def test_ood_metrics_are_mean_aurocs_of_groups_and_resample_test_images_once(
    tmp_path: Path,
) -> None:
    """All AUROCs of eulerlora-2 are 1 in every resample."""
    results = compared(tmp_path / "all")
    for index, seed in enumerate(SEEDS[:2]):
        test, *others = scores_of(seed)[:4]
        far_a, far_b, near = (
            float(roc_auc_score(np.arange(48) < 24, np.concatenate([test, other])))
            for other in others
        )
        assert results["far_msp"].by_seed[index] == pytest.approx((far_a + far_b) / 2 - 1)
        assert results["near_msp"].by_seed[index] == pytest.approx(near - 1)
    assert results["far_feature_distance"].by_seed == results["far_msp"].by_seed
    # With equal sets, the mean of two has the error that both share from the test images.
    shared, alone = (
        compared(tmp_path / str(len(sets)), sets=sets)["far_msp"].images_error
        for sets in ((0, 1, 1), (0, 1))
    )
    assert 0.75 * alone < shared < alone


@pytest.mark.parametrize(
    ("pattern", "replacement", "named"),
    [
        (rb"(?m)^test,00,", b"test,99,", "expected the images of the other runs"),
        (rb"(?m)^a,00,", b"a,99,", "expected the images of the other runs"),
        (rb"(?m)^(a,.*,)[^,]+$", rb"\1", "feature_distance"),
        (rb",det,", b",,", "det, float32"),
        (rb",float32,", b",bfloat16,", "stoch, 4 samples, float32"),
    ],
)
def test_other_images_and_missing_predictions_or_scores_are_errors(
    tmp_path: Path, pattern: bytes, replacement: bytes, named: str
) -> None:
    table = read_table("ham10000-methods")
    runs = runs_of(table, SEEDS[:2], [], tmp_path, ["single", "eulerlora-2"])
    for run in runs:
        finish(run, data="HAM10000, lesion split")
        write_predictions(run.out / "report", DET, STOCH, seed=run.recipe.seed)
    path = runs[-1].out / "report/predictions.csv.gz"
    content = re.sub(pattern, replacement, gzip.decompress(path.read_bytes()).replace(b"\r", b""))
    path.write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=named):
        compare(table, runs)


def probabilities_of(seed: int, shift: float = 0.0) -> np.ndarray:
    """(24, 7) of the test images; `shift` is added to the logits of the true classes."""
    logits = np.random.default_rng(seed).normal(size=(24, 7)) + (2 + shift) * np.eye(7)[LABELS]
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def scores_of(seed: int, inside: float = 1.0) -> np.ndarray:
    """(sets, 24) scores that are high in distribution, by `inside` more in the test part."""
    values = np.random.default_rng(seed).normal(size=(len(SETS), 24))
    values[0] += inside
    return values


def write_predictions(
    folder: Path,
    *options: Options,
    seed: int,
    shift: float = 0.0,
    inside: float = 1.0,
    lesions: Sequence[str] = LESIONS,
    sets: Sequence[int] = range(len(SETS)),
) -> None:
    """Writes predictions of `probabilities_of` and `scores_of`, and others that do not count.

    `sets`: the rows of the scores, for the first of SETS.
    """
    values = scores_of(seed, inside)[list(sets)] + shift
    with gzip.open(folder / "predictions.csv.gz", "wt", newline="") as file:
        writer = csv.writer(file)
        columns = [*(f"p_{c}" for c in CLASSES), "group", "msp", "feature_distance"]
        writer.writerow(["set", "name", "cluster", "label", *asdict(DET), *columns])
        for of_set, (set_name, group) in zip(values.tolist(), SETS, strict=False):
            for choice in options:
                for index, row in enumerate(probabilities_of(seed, shift).tolist()):
                    label = CLASSES[LABELS[index]] if set_name == "test" else ""
                    scores = group, of_set[index], -2 * of_set[index] ** 3
                    cells = [*asdict(choice).values(), *row, *scores]
                    writer.writerow([set_name, f"{index:02}", lesions[index], label, *cells])


def finished_runs(folder: Path, shift: float = 0.0) -> list[TableRun]:
    """All runs of TABLE for SEEDS, finished; `shift` is that of eulerlora-1."""
    runs = runs_of(TABLE, SEEDS, [], folder)
    for run in runs:
        # one run ended early
        nll = [0.5, run.recipe.seed / 1000, *([0.25] if run.recipe.seed else [])]
        trained = {"validation_by_epoch": {"det": {"nll": nll}}}
        finish(run, data="HAM10000, lesion-best-epoch split", training=trained)
        is_arm = run.recipe.variant == "eulerlora-1"
        write_predictions(
            run.out / "report", DET, STOCH, seed=run.recipe.seed, shift=shift if is_arm else 0.0
        )
    return runs


def test_a_comparison_has_every_endpoint_of_the_table_with_paired_seeds(tmp_path: Path) -> None:
    runs = finished_runs(tmp_path, shift=0.5)
    comparison = compare(TABLE, runs)
    assert comparison is not None
    assert comparison.seeds == SEEDS
    assert len(comparison.secondary) == 44
    primary = comparison.primary
    assert primary is not None
    expected = [
        log_loss(LABELS, probabilities_of(seed, 0.5)) - log_loss(LABELS, probabilities_of(seed))
        for seed in SEEDS
    ]
    assert primary.by_seed == pytest.approx(tuple(expected))
    assert primary.difference == pytest.approx(np.mean(expected))
    assert primary.high < 0
    assert primary.adjusted_p is None
    equal = [r for r in comparison.secondary if r.arm.startswith("lora-20-sampled")]
    assert {(r.difference, r.p, r.adjusted_p) for r in equal} == {(0.0, 1.0, 1.0)}

    text = comparison_markdown(comparison)
    verdicts = {line.split(" | ")[0]: line.split(" | ")[1] for line in text.splitlines()[4:49]}
    name = "**NLL (nats): eulerlora-1 stoch - lora-20-sampled det** (primary)"
    assert verdicts[f"| {name}"] == "lower"
    unchanged = "| NLL (nats): lora-20-sampled stoch - lora-20-sampled det"
    assert verdicts[unchanged] == "no difference shown"
    assert "all 3 of 3 alone have p = 0.250" in text
    write_comparison(tmp_path / "new" / "results.json", TABLE, runs, comparison)
    content = json.loads((tmp_path / "new" / "results.json").read_text())
    assert content["primary"]["by_seed"] == pytest.approx(expected, abs=1e-5)
    assert content["seeds"] == list(SEEDS)
    assert content["rows"][0]["metrics_by_seed"]["nll"] == [0.5] * 3
    assert content["validation_by_epoch"]["probe"] == {"det": {"nll": [0.5, 0.416]}}


def test_some_variants_of_a_table_have_the_endpoints_between_them(tmp_path: Path) -> None:
    runs = finished_runs(tmp_path, shift=0.5)
    whole = compare(TABLE, runs)
    variants = ("lora-20-sampled", "eulerlora-1")
    chosen = [run for run in runs if run.recipe.variant in variants]
    comparison = compare(TABLE, chosen)
    assert whole is not None
    assert comparison is not None
    assert comparison.primary == whole.primary
    assert len(comparison.secondary) == 19
    unadjusted = [replace(r, adjusted_p=None, detectable=0.0) for r in whole.secondary]
    assert all(
        replace(result, adjusted_p=None, detectable=0.0) in unadjusted
        for result in comparison.secondary
    )
    first, same = comparison.secondary[0], whole.secondary[0]
    assert 0 < first.detectable < same.detectable  # among fewer endpoints
    adjusted = holm([result.p for result in comparison.secondary])
    assert [result.adjusted_p for result in comparison.secondary] == adjusted


def test_all_other_rows_are_compared_with_the_reference_in_one_family(tmp_path: Path) -> None:
    table = read_table("ham10000-methods")
    variants = ["single", "l2", "eulerlora-2"]
    runs = runs_of(table, SEEDS[:2], [], tmp_path, variants)
    for run in runs:
        finish(run, data="HAM10000, lesion split")
        shift = -1.0 if run.recipe.variant == "single" else 0.0
        write_predictions(run.out / "report", DET, STOCH, seed=run.recipe.seed, shift=shift)
    comparison = compare(table, runs)
    assert comparison is not None
    assert comparison.primary is None
    assert len(comparison.secondary) == (5 + 4) * 3  # eulerlora-2 in det too
    assert {result.minus for result in comparison.secondary} == {"eulerlora-2 stoch"}
    adjusted = holm([result.p for result in comparison.secondary])
    assert [result.adjusted_p for result in comparison.secondary] == adjusted
    (single,) = [r for r in comparison.secondary if (r.arm, r.metric) == ("single det", "nll")]
    assert single.difference > 0
    (far,) = [r for r in comparison.secondary if (r.arm, r.metric) == ("l2 det", "far_msp")]
    assert (far.difference, far.p, far.adjusted_p) == (0, 1, 1)
    text = comparison_markdown(comparison)
    assert "| AUROC against near sets by feature distance: single det - eulerlora-2 stoch |" in text
    assert f"{sum(p < 0.05 for p in adjusted)} of them have p < 0.05" in text


def test_seeds_without_all_runs_are_left_out(tmp_path: Path) -> None:
    runs = finished_runs(tmp_path)
    (runs[-1].out / "report/report.json").unlink()
    comparison = compare(TABLE, runs)
    assert comparison is not None
    assert comparison.seeds == SEEDS[:2]
    assert compare(TABLE, runs[: len(TABLE.variants)]) is None

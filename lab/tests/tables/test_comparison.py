"""Comparisons of a table's rows: the endpoints and the files."""

import csv
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from eulerlora_contract.sampling import Options
from eulerlora_lab.tables.table import read_table, runs_of
from lab.tests.tables.synthetic_runs import finish
from tests.conftest import DET, STOCH
from tests.program import refusal, succeed
from training.evaluation.comparison import holm

TABLE, METHODS = read_table("overfitting-1500"), read_table("ham10000-methods")
ROUNDED = 1e-5  # of figures in a file
SEEDS = (0, 42, 1206)
LABELS = np.arange(24) % 7
LESIONS = [f"lesion{index // 2}" for index in range(24)]
CLASSES = [f"c{index}" for index in range(7)]
SETS = [("test", "test"), ("a", "far"), ("b", "far"), ("c", "near"), ("d", "shifted")]


def arguments_of(out: Path, *variants: str, seeds: Sequence[int] = SEEDS[:2]) -> list[str]:
    """Arguments of `eulerlora reproduce`."""
    chosen = [part for name in variants for part in ("--variant", name)]
    return ["--out", str(out), "--seeds", ",".join(map(str, seeds)), *chosen]


def compared(out: Path, **arm: Any) -> dict[str, dict[str, Any]]:
    """The endpoints of `single` in mode det minus `eulerlora-2`, whose far sets have low scores.

    `arm`: of `write_predictions`, for `single`.
    """
    for run in runs_of(METHODS, SEEDS[:2], [], out, ["single", "eulerlora-2"]):
        finish(run, data="HAM10000, lesion split")
        of_arm = arm if run.recipe.variant == "single" else arm | {"shift": 0.0, "inside": 100.0}
        write_predictions(run.out / "report", DET, STOCH, seed=run.recipe.seed, **of_arm)
    arguments = arguments_of(out, "single", "eulerlora-2")
    succeed("reproduce", "ham10000-methods", *arguments)
    content = json.loads((out / "ham10000-methods+single+eulerlora-2.json").read_text())
    return {r["metric"]: r for r in content["secondary"] if r["arm"] == "single det"}


def test_differences_are_those_of_metrics_of_an_independent_library(tmp_path: Path) -> None:
    results = compared(tmp_path, shift=0.5)
    for index, seed in enumerate(SEEDS[:2]):
        arm, minus = probabilities_of(seed, 0.5), probabilities_of(seed)
        nll = log_loss(LABELS, arm) - log_loss(LABELS, minus)
        assert results["nll"]["by_seed"][index] == pytest.approx(nll, abs=ROUNDED)
        right = [(one.argmax(1) == LABELS).mean() for one in (arm, minus)]
        difference = pytest.approx(right[0] - right[1], abs=ROUNDED)
        assert results["accuracy"]["by_seed"][index] == difference


def test_the_error_of_a_metric_is_that_of_lesions_where_the_file_has_them(tmp_path: Path) -> None:
    lesions, pictures = (
        compared(tmp_path / str(number), shift=0.5, lesions=lesions)["nll"]["images_error"]
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
        far = (far_a + far_b) / 2
        assert results["far_msp"]["by_seed"][index] == pytest.approx(far - 1, abs=ROUNDED)
        assert results["near_msp"]["by_seed"][index] == pytest.approx(near - 1, abs=ROUNDED)
    assert results["far_feature_distance"]["by_seed"] == results["far_msp"]["by_seed"]
    # With equal sets, the mean of two has the error that both share from the test images.
    shared, alone = (
        compared(tmp_path / str(len(sets)), sets=sets)["far_msp"]["images_error"]
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
    runs = runs_of(METHODS, SEEDS[:2], [], tmp_path, ["single", "eulerlora-2"])
    for run in runs:
        finish(run, data="HAM10000, lesion split")
        write_predictions(run.out / "report", DET, STOCH, seed=run.recipe.seed)
    path = runs[-1].out / "report/predictions.csv.gz"
    content = re.sub(pattern, replacement, gzip.decompress(path.read_bytes()).replace(b"\r", b""))
    path.write_bytes(gzip.compress(content))
    arguments = arguments_of(tmp_path, "single", "eulerlora-2")
    assert named in refusal("reproduce", "ham10000-methods", *arguments)


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


def finish_runs(folder: Path, *seeds: int, overrides: Sequence[str] = ()) -> None:
    """Finishes all runs of TABLE; those of eulerlora-1 are better."""
    for run in runs_of(TABLE, seeds, overrides, folder):
        # one run ended early
        nll = [0.5, run.recipe.seed / 1000, *([0.25] if run.recipe.seed else [])]
        trained = {"validation_by_epoch": {"det": {"nll": nll}}}
        finish(run, data="HAM10000, lesion-best-epoch split", training=trained)
        shift = 0.5 if run.recipe.variant == "eulerlora-1" else 0.0
        write_predictions(run.out / "report", DET, STOCH, seed=run.recipe.seed, shift=shift)


def test_the_endpoints_of_a_table_have_paired_seeds_and_some_variants_have_those_between_them(
    tmp_path: Path,
) -> None:
    finish_runs(tmp_path, *SEEDS)
    text = succeed("reproduce", "overfitting-1500", *arguments_of(tmp_path, seeds=SEEDS)).out
    whole = json.loads((tmp_path / "overfitting-1500.json").read_text())
    assert whole["seeds"] == list(SEEDS)
    assert len(whole["secondary"]) == 44
    primary = whole["primary"]
    expected = [
        log_loss(LABELS, probabilities_of(seed, 0.5)) - log_loss(LABELS, probabilities_of(seed))
        for seed in SEEDS
    ]
    assert primary["by_seed"] == pytest.approx(expected, abs=ROUNDED)
    assert primary["difference"] == pytest.approx(np.mean(expected), abs=ROUNDED)
    assert primary["high"] < 0
    assert primary["adjusted_p"] is None
    equal = [r for r in whole["secondary"] if r["arm"].startswith("lora-20-sampled")]
    assert {(r["difference"], r["p"], r["adjusted_p"]) for r in equal} == {(0.0, 1.0, 1.0)}
    assert whole["rows"][0]["metrics_by_seed"]["nll"] == [0.5] * 3
    assert whole["validation_by_epoch"]["probe"] == {"det": {"nll": [0.5, 0.416]}}

    rows = text.partition("### Endpoints")[2].splitlines()[4:49]
    verdicts = {row.split(" | ")[0]: row.split(" | ")[1] for row in rows}
    name = "**NLL (nats): eulerlora-1 stoch - lora-20-sampled det** (primary)"
    assert verdicts[f"| {name}"] == "lower"
    unchanged = "| NLL (nats): lora-20-sampled stoch - lora-20-sampled det"
    assert verdicts[unchanged] == "no difference shown"
    assert "all 3 of 3 alone have p = 0.250" in text

    variants = ("lora-20-sampled", "eulerlora-1")
    succeed("reproduce", "overfitting-1500", *arguments_of(tmp_path, *variants, seeds=SEEDS))
    some = json.loads((tmp_path / f"overfitting-1500+{'+'.join(variants)}.json").read_text())
    assert some["primary"] == whole["primary"]
    assert len(some["secondary"]) == 19
    first, same = some["secondary"][0], whole["secondary"][0]
    assert 0 < first["detectable"] < same["detectable"]  # among fewer endpoints
    unadjusted = [r | {"adjusted_p": None, "detectable": 0.0} for r in whole["secondary"]]
    assert all(r | {"adjusted_p": None, "detectable": 0.0} in unadjusted for r in some["secondary"])
    assert_adjusted(some["secondary"])


def assert_adjusted(results: Sequence[Mapping[str, Any]]) -> None:
    expected = holm([result["p"] for result in results])
    adjusted = [result["adjusted_p"] for result in results]
    assert adjusted == pytest.approx(expected, abs=len(results) * ROUNDED)


def test_all_other_rows_are_compared_with_the_reference_in_one_family(tmp_path: Path) -> None:
    variants = ["single", "l2", "eulerlora-2"]
    for run in runs_of(METHODS, SEEDS[:2], [], tmp_path, variants):
        finish(run, data="HAM10000, lesion split")
        shift = -1.0 if run.recipe.variant == "single" else 0.0
        write_predictions(run.out / "report", DET, STOCH, seed=run.recipe.seed, shift=shift)
    text = succeed("reproduce", "ham10000-methods", *arguments_of(tmp_path, *variants)).out
    content = json.loads((tmp_path / f"ham10000-methods+{'+'.join(variants)}.json").read_text())
    assert content["primary"] is None
    results = content["secondary"]
    assert len(results) == (5 + 4) * 3  # eulerlora-2 in det too
    assert {result["minus"] for result in results} == {"eulerlora-2 stoch"}
    assert_adjusted(results)
    of_arm = {(r["arm"], r["metric"]): r for r in results}
    assert of_arm["single det", "nll"]["difference"] > 0
    far = of_arm["l2 det", "far_msp"]
    assert (far["difference"], far["p"], far["adjusted_p"]) == (0, 1, 1)
    assert "| AUROC against near sets by feature distance: single det - eulerlora-2 stoch |" in text
    shown = sum(result["adjusted_p"] < 0.05 for result in results)
    assert f"{shown} of them have p < 0.05" in text


def test_a_seed_with_a_run_that_failed_is_left_out(
    tmp_path: Path, on_tiny_data: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eulerlora_lab.tables.local.python_command", lambda *_: ("false",))
    overrides = ["data.at_most={train = 30}", *on_tiny_data[3::2]]
    finish_runs(tmp_path, *SEEDS, overrides=overrides)
    lost = runs_of(TABLE, SEEDS[1:2], overrides, tmp_path, ["eulerlora-1"])[0]
    lost.report_file.unlink()
    settings = ("--set", overrides[0], *on_tiny_data)
    refusal("reproduce", "overfitting-1500", *arguments_of(tmp_path, seeds=SEEDS), *settings)
    content = json.loads((tmp_path / "overfitting-1500.json").read_text())
    assert content["seeds"] == [SEEDS[0], SEEDS[2]]


def test_one_seed_with_all_runs_has_no_endpoints(tmp_path: Path) -> None:
    finish_runs(tmp_path, 0)
    done = succeed("reproduce", "overfitting-1500", *arguments_of(tmp_path, seeds=(0,)))
    assert "no endpoints" in done.out
    assert not list(tmp_path.glob("*.json"))

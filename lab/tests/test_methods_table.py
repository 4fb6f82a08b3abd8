"""The table of methods: metrics of stored pictures, both parts of the error, families of tests."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from eulerlora_lab.adaptation import ROWS, SEEDS
from eulerlora_lab.methods_table import (
    COMPARISONS,
    METRICS,
    differences,
    metrics_of,
    resampled_rows,
    results_table,
    tuning_table,
    values_of,
)
from lab.tests.test_adaptation import flat, made_runs
from training.evaluation.intervals import unit_weights

PICTURES = 60


def stored(shift: float = 0.0) -> dict[str, Any]:
    """Values of all rows and seeds; EulerLoRA with one adapter has a lower NLL by `shift`."""
    random, arrays = np.random.default_rng(0), {}
    for seed in SEEDS:
        common = random.uniform(0.5, 1.5, PICTURES)
        for row in ROWS:
            nll = common + random.normal(0, 0.01, PICTURES) - shift * (row == "eulerlora-1")
            confidence = random.uniform(0.1, 1, PICTURES)
            values: dict[str, Any] = {"temperature": 1.0, "svhn": random.uniform(0.1, 1, PICTURES)}
            for ending in ("", "_scaled"):
                values[f"nll{ending}"] = nll
                values[f"confidence{ending}"] = confidence
                values[f"right{ending}"] = random.random(PICTURES) < 0.7
            arrays |= {f"{row}/{seed}/{name}": value for name, value in values.items()}
    return arrays


def test_metrics_of_stored_pictures_equal_those_of_other_libraries() -> None:
    values = values_of(stored(), "lora", SEEDS[0])
    metrics = metrics_of(values, unit_weights(2 * PICTURES))
    scores = np.concatenate([values["confidence"], values["svhn"]])
    expected = roc_auc_score(np.arange(2 * PICTURES) < PICTURES, scores)
    assert metrics["auroc"][0] == pytest.approx(expected)
    assert metrics["accuracy"][0] == pytest.approx(values["right"].mean())
    order = np.argsort(-values["confidence"])
    risks = (~values["right"])[order].cumsum() / np.arange(1, PICTURES + 1)
    assert metrics["aurc"][0] == pytest.approx(risks.mean())


def test_a_true_difference_is_shown_and_its_error_has_both_parts() -> None:
    rows = resampled_rows(stored(shift=0.2))
    tests = {(test.metric, test.arm, test.minus): (test, p) for test, p in differences(rows)}
    assert len(tests) == len(METRICS) * sum(len(others) for _, others in COMPARISONS)
    test, p = tests["nll", "eulerlora-1", "lora"]
    assert p < 0.05
    assert test.seeds_error > 0
    assert test.lesions_error > 0
    assert tests["nll", "eulerlora-2", "ensemble-8"][1] > 0.05


def test_a_row_without_all_seeds_is_left_out_and_the_finished_ones_are_printed() -> None:
    kept = ("lora/", "ensemble-16/", "ivon/0/")
    arrays = {name: value for name, value in stored().items() if name.startswith(kept)}
    rows, results = resampled_rows(arrays), made_runs(flat)
    assert "ivon" not in rows
    assert "| ensemble-16 | det | 0.3, 0.0003 |" in results_table(rows, results)
    assert "| lora | 0.3 | 0.0003 | **" in tuning_table(results)

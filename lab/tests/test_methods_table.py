"""The table of methods: metrics of stored pictures, both parts of the error, families of tests."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from eulerlora_lab import adaptation, methods_table

ROWS = adaptation.ROWS
PICTURES = 60
SEEDS = (0, 42, 1206)
PAIRS = 12 + 5
"""Rows that EulerLoRA with one adapter is compared with, and those of two adapters."""


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


Tables = Callable[..., list[list[dict[str, str]]]]


@pytest.fixture
def tables(
    study: Callable[..., Path], program: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Tables:
    """The rows of the tables of tuning, results and differences, of values of pictures."""

    def printed(
        arrays: dict[str, Any], only: Sequence[str] = tuple(ROWS)
    ) -> list[list[dict[str, str]]]:
        chosen = {name: ROWS[name] for name in only}
        monkeypatch.setattr(methods_table, "ROWS", chosen)
        monkeypatch.setattr(adaptation, "ROWS", chosen)
        folder = study(lambda run: 1.0 + run.gain / 100 + run.rate)
        np.savez(folder / "methods.npz", **arrays)
        text = program(methods_table.main, "--results", folder)
        return [rows(part.strip().splitlines()) for part in text.split("\n\n")]

    return printed


def rows(lines: Sequence[str]) -> list[dict[str, str]]:
    head, _, *others = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    return [dict(zip(head, cells, strict=True)) for cells in others]


def mean_and_deviation(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


def test_metrics_of_stored_pictures_equal_those_of_other_libraries(tables: Tables) -> None:
    arrays = {name: value for name, value in stored().items() if name.startswith("lora/")}
    _, (row,), _ = tables(arrays, ["lora"])
    expected: dict[str, list[float]] = {"auroc": [], "accuracy": [], "aurc": [], "nll": []}
    for seed in SEEDS:
        values = {name: arrays[f"lora/{seed}/{name}"] for name in ("confidence", "right", "nll")}
        scores = np.concatenate([values["confidence"], arrays[f"lora/{seed}/svhn"]])
        expected["auroc"].append(roc_auc_score(np.arange(2 * PICTURES) < PICTURES, scores))
        expected["accuracy"].append(values["right"].mean())
        expected["nll"].append(values["nll"].mean())
        order = np.argsort(-values["confidence"])
        risks = (~values["right"])[order].cumsum() / np.arange(1, PICTURES + 1)
        expected["aurc"].append(risks.mean())
    for metric, by_seed in expected.items():
        assert row[metric] == mean_and_deviation(by_seed), metric


def test_a_true_difference_is_shown_and_its_error_has_both_parts(tables: Tables) -> None:
    _, results, tests = tables(stored(shift=0.2))
    assert [row["row"] for row in results] == list(ROWS)
    assert len(tests) == 9 * PAIRS
    by_arm = {(test["metric"], test["row"], test["less"]): test for test in tests}
    test = by_arm["nll", "eulerlora-1", "lora"]
    assert float(test["p, Holm"]) < 0.05
    assert test[""] == "**shown**"
    assert float(test["error of seeds"]) > 0
    assert float(test["error of pictures"]) > 0
    assert float(by_arm["nll", "eulerlora-2", "ensemble-8"]["p, Holm"]) > 0.05


def test_a_row_without_all_seeds_is_left_out_and_the_finished_ones_are_printed(
    tables: Tables,
) -> None:
    kept = ("lora/", "ensemble-16/", "ivon/0/")
    arrays = {name: value for name, value in stored().items() if name.startswith(kept)}
    tuning, results, _ = tables(arrays, ["lora", "ensemble-2", "ensemble-16", "ivon"])
    printed = {row["row"]: row for row in results}
    assert list(printed) == ["lora", "ensemble-16"]
    assert printed["ensemble-16"]["mode"] == "det"
    assert printed["ensemble-16"]["gain, rate"] == "0.3, 0.0003"
    (chosen,) = [row for row in tuning if row["row"] == "lora" and "**" in str(row)]
    assert (chosen["gain"], chosen["rate"]) == ("0.3", "0.0003")

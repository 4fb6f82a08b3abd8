"""The order of the runs of the study of adapters, and what their tuning chooses."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eulerlora_lab.adaptation import (
    LADDER,
    ROWS,
    SAMPLES,
    SEEDS,
    TUNING_SEEDS,
    Cell,
    Folder,
    Row,
    Run,
    chosen_cell,
    claims_runs,
    first_cells,
    picture_values,
    planned_runs,
)

Results = dict[Run, Mapping[str, Any]]
NLL = Callable[[Run], float]


def result_of(nll: float) -> Mapping[str, Any]:
    modes = [
        f"{mode}{ending}" for mode in ("det", f"stoch-{SAMPLES}") for ending in ("", "-members")
    ]
    return {"validation": dict.fromkeys(modes, nll)}


def made_runs(nll: NLL) -> Results:
    """All runs in their order, with the NLL of each."""
    results: Results = {}
    while pending := [run for run in planned_runs(results) if run not in results]:
        results[pending[0]] = result_of(nll(pending[0]))
    return results


def flat(run: Run) -> float:
    return 1.0 + run.gain / 100 + run.rate


def test_all_rows_get_runs_of_all_seeds() -> None:
    results = made_runs(flat)
    for row in ROWS.values():
        members = list(claims_runs(row, results))
        assert {run.seed for run in members} == set(SEEDS)
        assert len(members) == len(SEEDS) * row.members
        assert set(members) <= set(results)


def test_tuning_never_has_a_seed_of_the_table() -> None:
    for run in made_runs(flat):
        assert run.seed in (TUNING_SEEDS if run.stage == "tuning" else SEEDS)


def test_a_steep_edge_is_followed_and_a_flat_one_is_not() -> None:
    def steep(run: Run) -> float:
        return 3.0 - LADDER.index(run.rate) / 4 if run.rate < 1e-2 else 3.0

    row = ROWS["bayeslora"]
    assert len(first_cells(row, made_runs(flat))) == 4
    added = first_cells(row, made_runs(steep))[4:]
    assert added == [Cell(0.3, 3e-3), Cell(0.3, 1e-2)]


def test_the_second_seed_decides_between_the_best_two_cells() -> None:
    def second_prefers_the_other(run: Run) -> float:
        if run.seed == TUNING_SEEDS[1]:
            return 1.0 if run.gain == 1.0 else 2.0
        return 1.0 + 0.01 * (run.gain == 1.0) + 0.05 * (run.rate == 3e-4)

    results = made_runs(second_prefers_the_other)
    assert chosen_cell(ROWS["blob"], results) == Cell(1.0, 1e-3)
    assert chosen_cell(ROWS["ensemble-16"], results) == chosen_cell(ROWS["ensemble-2"], results)
    second = [run for run in results if run.arm == "blob" and run.seed == TUNING_SEEDS[1]]
    assert len(second) == 2


def test_a_run_that_diverged_is_not_chosen() -> None:
    results = made_runs(lambda run: float("nan") if run.rate == 1e-3 else flat(run))
    cell = chosen_cell(ROWS["lora"], results)
    assert cell is not None
    assert cell.rate != 1e-3


def test_members_share_no_seed_and_the_first_has_that_of_the_run() -> None:
    runs = [Run("claims", "lora", 0.3, 1e-3, 42, member) for member in range(16)]
    seeds = [run.member_seed for run in runs]
    assert seeds[0] == 42
    assert len(set(seeds)) == 16


def test_stored_values_give_the_metrics_of_the_mean_probability(tmp_path: Path) -> None:
    folder, random = Folder(tmp_path), np.random.default_rng(0)
    members = [Run("claims", "lora", 0.3, 1e-3, 0, member) for member in range(2)]
    folder.logits(members[0]).parent.mkdir()
    stored: dict[Run, dict[str, Any]] = {}
    for run in members:
        parts = ("validation", "test", "svhn")
        stored[run] = {f"{part}-det": random.normal(size=(30, 1, 3)) for part in parts}
        np.savez(folder.logits(run), **stored[run])
    labels = {part: torch.arange(30) % 3 for part in ("validation", "test")}
    values = picture_values(folder, Row("lora", members=2), members, labels)
    probabilities = np.mean(
        [np.exp(s["test-det"][:, 0]) / np.exp(s["test-det"][:, 0]).sum(-1, keepdims=True)
         for s in stored.values()], axis=0,
    )  # fmt: skip
    of_label = probabilities[np.arange(30), labels["test"].numpy()]
    assert values["nll"] == pytest.approx(-np.log(of_label), rel=1e-5)
    assert values["confidence"] == pytest.approx(probabilities.max(-1), rel=1e-5)
    assert (values["right"] == (probabilities.argmax(-1) == labels["test"].numpy())).all()
    assert values["temperature"] > 0


def test_a_repeated_run_differs_in_its_stage_only() -> None:
    results = made_runs(flat)
    (repeated,) = [run for run in results if run.stage == "repeat"]
    assert replace(repeated, stage="claims") in results

"""The order of the runs of the study of adapters, and what their tuning chooses."""

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eulerlora_lab import adaptation

TUNING_SEEDS, SEEDS = (100, 101), (0, 42, 1206)

Study = Callable[..., Path]
Runs = list[dict[str, Any]]


def flat(run: Any) -> float:
    return 1.0 + run.gain / 100 + run.rate


def runs_of(folder: Path, **values: object) -> Runs:
    """The finished runs with these values, in their order."""
    lines = (folder / "methods.jsonl").read_text().splitlines()
    runs = [json.loads(line)["run"] for line in lines]
    return [run for run in runs if values.items() <= run.items()]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Leaves these rows of the table."""

    def chosen(*names: str) -> None:
        monkeypatch.setattr(adaptation, "ROWS", {name: adaptation.ROWS[name] for name in names})

    return chosen


def cells(runs: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    return list(dict.fromkeys((run["gain"], run["rate"]) for run in runs))


def test_all_rows_get_runs_of_all_seeds_and_tuning_has_others(study: Study) -> None:
    folder = study(flat)
    for row in adaptation.ROWS.values():
        members = {(run["seed"], run["member"]) for run in runs_of(
            folder, stage="claims", arm=row.arm
        )}  # fmt: skip
        assert members >= set(itertools.product(SEEDS, range(row.members)))
    claims = runs_of(folder, stage="claims")
    most = {row.arm: row.members for row in sorted(
        adaptation.ROWS.values(), key=lambda row: row.members
    )}  # fmt: skip
    assert len(claims) == len(SEEDS) * sum(most.values())
    assert {run["seed"] for run in runs_of(folder, stage="tuning")} == set(TUNING_SEEDS)
    assert {run["seed"] for run in claims} == set(SEEDS)
    (repeated,) = runs_of(folder, stage="repeat")
    assert repeated | {"stage": "claims"} in claims


def test_a_steep_edge_is_followed_and_a_flat_one_is_not(
    study: Study, only: Callable[..., None]
) -> None:
    only("lora", "bayeslora")

    def steep(run: Any) -> float:
        return 3.0 - math.log10(run.rate * 1e6) / 2 if run.rate < 1e-2 else 3.0

    first = {"stage": "tuning", "arm": "bayeslora", "seed": TUNING_SEEDS[0]}
    assert len(cells(runs_of(study(flat), **first))) == 4
    assert cells(runs_of(study(steep), **first))[4:] == [(0.3, 3e-3), (0.3, 1e-2)]


def test_the_second_seed_decides_between_the_best_two_cells(
    study: Study, only: Callable[..., None]
) -> None:
    only("lora", "ensemble-2", "ensemble-16", "blob")

    def second_prefers_the_other(run: Any) -> float:
        if run.seed == TUNING_SEEDS[1]:
            return 1.0 if run.gain == 1.0 else 2.0
        return 1.0 + 0.01 * (run.gain == 1.0) + 0.05 * (run.rate == 3e-4)

    folder = study(second_prefers_the_other)
    assert cells(runs_of(folder, stage="claims", arm="blob")) == [(1.0, 1e-3)]
    members = runs_of(folder, stage="claims", arm="lora")
    assert max(run["member"] for run in members) == 15
    assert cells(members) == [(1.0, 1e-3)]  # an ensemble of 16 takes the cell of 2
    assert len(runs_of(folder, stage="tuning", arm="blob", seed=TUNING_SEEDS[1])) == 2


def test_a_run_that_diverged_is_not_chosen(study: Study, only: Callable[..., None]) -> None:
    only("lora")
    folder = study(lambda run: float("nan") if run.rate == 3e-4 else flat(run))
    chosen = cells(runs_of(folder, stage="claims", arm="lora"))
    assert chosen
    assert all(rate != 3e-4 for _, rate in chosen)


def test_members_share_no_seed_and_the_first_has_that_of_the_run(
    study: Study, only: Callable[..., None]
) -> None:
    seeds: dict[int, int] = {}
    only("lora", "ensemble-2", "ensemble-16")

    def remembered(run: Any) -> float:
        if (run.stage, run.seed) == ("claims", 42):
            seeds[run.member] = run.member_seed
        return flat(run)

    study(remembered)
    assert seeds[0] == 42
    assert len(set(seeds.values())) == 16


def test_stored_values_give_the_metrics_of_the_mean_probability(
    study: Study, only: Callable[..., None]
) -> None:
    random, stored = np.random.default_rng(0), {}
    only("lora", "ensemble-2")

    def store(run: Any, folder: Any) -> None:
        parts = ("validation", "test", "svhn")
        logits = {f"{part}-det": random.normal(size=(30, 1, 3)) for part in parts}
        folder.logits(run).parent.mkdir(exist_ok=True)
        np.savez(folder.logits(run), **logits)
        if (run.stage, run.seed) == ("claims", 0) and run.member < 2:
            stored[run.member] = logits["test-det"][:, 0]

    values = np.load(study(flat, store) / "methods.npz")
    probabilities = np.mean(
        [np.exp(s) / np.exp(s).sum(-1, keepdims=True) for s in stored.values()], axis=0
    )
    labels = np.arange(30) % 3
    ensemble = {name: values[f"ensemble-2/0/{name}"] for name in ("nll", "confidence", "right")}
    assert ensemble["nll"] == pytest.approx(-np.log(probabilities[range(30), labels]), rel=1e-5)
    assert ensemble["confidence"] == pytest.approx(probabilities.max(-1), rel=1e-5)
    assert (ensemble["right"] == (probabilities.argmax(-1) == labels)).all()
    assert values["ensemble-2/0/temperature"] > 0


def test_processes_that_share_a_folder_make_every_run_once(tmp_path: Path) -> None:
    folder = adaptation.Folder(tmp_path)
    runs = [adaptation.StudyRun("claims", "lora", 0.3, 1e-3, 0, member) for member in range(2)]
    with folder.claimed(runs) as first, folder.claimed(runs) as second:
        assert [first, second] == runs
        with folder.claimed(runs) as third:
            assert third is None
    with folder.claimed(runs) as run:
        assert run == runs[0]
    folder.lines.write_text(json.dumps({"run": asdict(runs[0])}) + "\n")
    with folder.claimed(runs) as run:
        assert run == runs[1]

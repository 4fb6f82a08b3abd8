"""Paired comparison of a table's rows over seeds and lesions, as Markdown and as JSON.

Both arms of a difference have the same seeds, training images and test images. The statistics are
those of `training.evaluation.comparison`; intervals refer to new seeds and new lesions of the same
population.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import numpy as np

from eulerlora_contract.errors import DataError
from eulerlora_contract.output_files import write_text
from eulerlora_lab.tables.results import COMPARED_SCORES, METRIC_NAMES, arm_results, section
from eulerlora_lab.tables.table import Difference, ResultTable, TableRun
from training.evaluation.comparison import (
    LEVEL,
    POWER,
    REJECTED_GROUPS,
    EndpointResult,
    Resampled,
    adjusted,
    endpoint_result,
    ood_metric,
    read_predictions,
    resampled_metrics,
)
from training.evaluation.report_schema import REPORT

FEWEST_SEEDS = 2


@dataclass(frozen=True)
class TableComparison:
    seeds: tuple[int, ...]
    primary: EndpointResult | None
    secondary: tuple[EndpointResult, ...]


def compare(table: ResultTable, runs: Sequence[TableRun]) -> TableComparison | None:
    """The tested endpoints between the variants of the runs.

    None with fewer than two seeds that have all runs.

    Raises:
        DataError: If two runs have other images.
    """
    differences = table.differences({run.recipe.variant or "" for run in runs})
    arms = [table.arms[n] for n in dict.fromkeys(n for d in differences for n in (d.arm, d.minus))]
    finished = {
        (run.recipe.variant, run.recipe.seed): run for run in runs if run.status == "finished"
    }
    seeds = tuple(
        seed
        for seed in dict.fromkeys(run.recipe.seed for run in runs)
        if all((arm.variant, seed) in finished for arm in arms)
    )
    if len(seeds) < FEWEST_SEEDS:
        return None
    scores = list(dict.fromkeys(score for d in differences for score in d.ood))
    results: dict[tuple[str, int], Resampled] = {}
    images: dict[str, tuple[str, ...]] = {}
    for arm in arms:
        for seed in seeds:
            folder = finished[arm.variant, seed].out / REPORT
            sets = read_predictions(folder, arm.options, scores)
            names = {name: of_set.names for name, of_set in sets.items()}
            images = images or names
            if names != images:
                raise DataError(f"{folder}: expected the images of the other runs, got others")
            results[arm.name, seed] = resampled_metrics(sets)
    of_difference = [_tested(difference, seeds, results) for difference in differences]
    primary = of_difference.pop(0)[0] if differences[0] is table.primary else None
    tested = [result for endpoints in of_difference for result in endpoints]
    return TableComparison(seeds, primary, adjusted(tested))


def _tested(
    difference: Difference, seeds: Sequence[int], results: Mapping[tuple[str, int], Resampled]
) -> list[EndpointResult]:
    arm, minus = difference.arm, difference.minus
    of_ood = [ood_metric(group, score) for group in REJECTED_GROUPS for score in difference.ood]
    present = results[arm, seeds[0]]
    return [
        endpoint_result(
            metric,
            arm,
            minus,
            *(np.stack([results[n, seed][metric] for seed in seeds]) for n in (arm, minus)),
        )
        for metric in (*difference.metrics, *(name for name in of_ood if name in present))
    ]


_ENDPOINT_NAMES = METRIC_NAMES | {
    ood_metric(group, score): f"AUROC against {group} sets by {title}"
    for group in REJECTED_GROUPS
    for score, title in COMPARED_SCORES.items()
}


def comparison_markdown(comparison: TableComparison) -> str:
    """A table of the endpoints, first the primary one, and notes on the method."""
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
                **asdict(arm),
                "metrics_by_seed": {
                    metric: [
                        arm_results(table, arm, run)[metric] for run in of_variant[arm.variant]
                    ]
                    for metric in table.metrics
                },
            }
            for arm in table.arms.values()
            if of_variant[arm.variant]
        ],
        "validation_by_epoch": {
            variant: _mean_by_epoch(of_this) for variant, of_this in of_variant.items() if of_this
        },
    }
    rounded = json.loads(json.dumps(content), parse_float=lambda text: round(float(text), 5))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, f"{json.dumps(rounded, indent=1)}\n")


def _cells(result: EndpointResult, comparison: TableComparison) -> list[str]:
    name = f"{_ENDPOINT_NAMES[result.metric]}: {result.arm} - {result.minus}"
    return [
        f"**{name}** (primary)" if result is comparison.primary else name,
        result.verdict,
        f"{result.difference:+.4f}",
        f"{result.low:+.4f} to {result.high:+.4f}",
        f"{result.detectable:.4f}",
        f"{result.same_sign} of {len(comparison.seeds)}",
        f"{result.p:.4f}",
        "-" if result.adjusted_p is None else f"{result.adjusted_p:.4f}",
    ]


def _mean_by_epoch(runs: Sequence[TableRun]) -> Mapping[str, Mapping[str, list[float]]]:
    """Means over runs by mode and metric, for the epochs that all runs reached."""
    recorded = [run.config().provenance["training"].get("validation_by_epoch", {}) for run in runs]
    return {
        mode: {
            metric: [
                mean(values) for values in zip(*(r[mode][metric] for r in recorded), strict=False)
            ]
            for metric in metrics
        }
        for mode, metrics in recorded[0].items()
    }

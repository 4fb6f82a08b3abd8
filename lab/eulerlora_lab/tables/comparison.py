"""Paired comparison of a table's rows over seeds and lesions, from the stored predictions, as
Markdown and as JSON.

Both arms of a difference have the same seeds, training images and test images. A difference is the
mean over seeds. Its variance is the sum of two parts, both of which contain the interaction, so
that the interval is rather too wide than too narrow:

    seeds     sample variance of the per-seed differences / number of seeds
    lesions   variance of the mean over seeds when the lesions are resampled (cluster bootstrap);
              for the AUROC of OOD scores, with the images of the out-of-distribution sets

Equal images give equal resamples in all runs, so that metrics of two runs can be paired. Intervals
and p values are those of Student's t with Satterthwaite's degrees of freedom (Biometrics Bulletin
2, 110, 1946). They refer to new seeds and new lesions of the same population. A difference that is
not significant is not absent: `detectable` is the smallest one that such runs would show.
"""

import csv
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from scipy.special import nctdtrinc, stdtr, stdtrit

from eulerlora.scores.ood_scores import ScoreName
from eulerlora_contract.errors import DataError
from eulerlora_contract.output_files import write_text
from eulerlora_contract.sampling import Options
from eulerlora_lab.tables.results import COMPARED_SCORES, METRIC_NAMES, arm_results, section
from eulerlora_lab.tables.table import Difference, ResultTable, TableRun
from training.adaptation.train import REPORT
from training.evaluation.intervals import (
    CONFIDENCE,
    Floats,
    Ints,
    Weights,
    cluster_indices,
    resampled,
)
from training.evaluation.metrics import auroc, classification_metrics
from training.evaluation.mode_report import familiarity
from training.evaluation.report_schema import TEST
from training.reporting.report import PREDICTIONS

FEWEST_SEEDS = 2
LEVEL, POWER = 1 - CONFIDENCE, 0.8
_REJECTED_GROUPS = ("far", "near")
"""Groups of sets that a score should reject; `shifted` images belong to classes."""

_Resampled = Mapping[str, Floats]
"""Metrics by name, (1 + resamples,): first those of all images, then those of the resamples."""


@dataclass(frozen=True)
class EndpointResult:
    """A metric of `arm` minus that of `minus`, for each seed in `by_seed`.

    Attributes:
        low: With `high`, the 95% confidence interval.
        p: Two-sided.
        adjusted_p: Corrected by Holm over all secondary endpoints; None for the primary one.
        detectable: The difference, of either sign, that is significant with a probability of POWER;
            its level is LEVEL for the primary endpoint and LEVEL divided by the number of secondary
            endpoints for each of these (the first step of Holm).
        seeds_error: Standard error from seeds.
        lesions_error: Standard error from lesions.
        freedom: Degrees of freedom of both together.
    """

    metric: str
    arm: str
    minus: str
    difference: float
    low: float
    high: float
    p: float
    adjusted_p: float | None
    detectable: float
    seeds_error: float
    lesions_error: float
    freedom: float
    by_seed: tuple[float, ...]

    @property
    def shown(self) -> bool:
        """True if it is significant, after the correction for a secondary endpoint."""
        return (self.p if self.adjusted_p is None else self.adjusted_p) < LEVEL

    @property
    def same_sign(self) -> int:
        """Number of seeds whose difference has the sign of the mean."""
        return sum(value * self.difference > 0 for value in self.by_seed)


@dataclass(frozen=True)
class TableComparison:
    seeds: tuple[int, ...]
    primary: EndpointResult | None
    secondary: tuple[EndpointResult, ...]


@dataclass(frozen=True)
class _StoredPredictions:
    """Predictions of a run for n images of a set in one mode.

    Attributes:
        clusters: (n,).
        labels: (n,) class indices, -1 for none.
        probabilities: (n, classes).
        scores: (n,) OOD scores, high in distribution.
    """

    group: str
    names: tuple[str, ...]
    clusters: tuple[str, ...]
    labels: Ints
    probabilities: Floats
    scores: Mapping[ScoreName, Floats]


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
    results: dict[tuple[str, int], _Resampled] = {}
    images: dict[str, tuple[str, ...]] = {}
    for arm in arms:
        for seed in seeds:
            folder = finished[arm.variant, seed].out / REPORT
            sets = _read_predictions(folder, arm.options, scores)
            names = {name: of_set.names for name, of_set in sets.items()}
            images = images or names
            if names != images:
                raise DataError(f"{folder}: expected the images of the other runs, got others")
            results[arm.name, seed] = _resampled_metrics(sets)
    of_difference = [_tested(difference, seeds, results) for difference in differences]
    primary = of_difference.pop(0)[0] if differences[0] is table.primary else None
    tested = [result for endpoints in of_difference for result in endpoints]
    adjusted = holm([result.p for result in tested])
    secondary = tuple(
        replace(result, adjusted_p=p, detectable=detectable(result, len(tested)))
        for result, p in zip(tested, adjusted, strict=True)
    )
    return TableComparison(seeds, primary, secondary)


def _read_predictions(
    folder: Path, options: Options, scores: Sequence[ScoreName] = ()
) -> dict[str, _StoredPredictions]:
    """The predictions in a run's report folder by set: the test part first.

    With scores also the sets of `_REJECTED_GROUPS`.

    Raises:
        DataError: If the file has no predictions for the test part with these options, or lacks
            one of the scores.
    """
    path, stated = folder / PREDICTIONS, asdict(options)
    by_set: dict[str, list[dict[str, str]]] = {TEST: []}
    with gzip.open(path, "rt", encoding="utf-8", errors="surrogateescape", newline="") as file:
        for row in csv.DictReader(file):
            if any(row[name] != str(value) for name, value in stated.items()):
                continue
            if row["set"] == TEST or (scores and row["group"] in _REJECTED_GROUPS):
                by_set.setdefault(row["set"], []).append(row)
    if not by_set[TEST]:
        raise DataError(f"{path}: expected predictions for the test part with {options}, got none")
    columns = [name for name in by_set[TEST][0] if name.startswith("p_")]
    labels = {name.removeprefix("p_"): index for index, name in enumerate(columns)}
    return {
        name: _StoredPredictions(
            group=rows[0]["group"],
            names=tuple(row["name"] for row in rows),
            clusters=tuple(row["cluster"] or row["name"] for row in rows),
            labels=np.array([labels.get(row["label"], -1) for row in rows]),
            probabilities=np.array([[float(row[name]) for name in columns] for row in rows]),
            scores={score: familiarity(score, _score(path, rows, score)) for score in scores},
        )
        for name, rows in by_set.items()
    }


def _score(path: Path, rows: Sequence[Mapping[str, str]], score: ScoreName) -> Floats:
    values = [row[score] for row in rows]
    if "" in values:
        raise DataError(f"{path}: expected {score} of all images of {rows[0]['set']}, got none")
    return np.array([float(value) for value in values])


def _resampled_metrics(sets: Mapping[str, _StoredPredictions]) -> _Resampled:
    """The metrics of the test part, and `_ood_metric` of every group and score of the sets.

    Lesions are resampled; for a mean AUROC the test part, which is positive, and all sets together.
    """
    test = sets[TEST]
    smallest = np.finfo(np.float64).tiny
    log_probabilities = torch.from_numpy(np.log(test.probabilities.clip(min=smallest)))
    metrics = partial(classification_metrics, log_probabilities[:, None], test.labels)
    results = resampled(metrics, cluster_indices(test.clusters))
    outside = [of_set for name, of_set in sets.items() if name != TEST]
    if not outside:
        return results
    ends = np.cumsum([len(test.names), *(len(of_set.names) for of_set in outside)])[:-1]

    def mean_aurocs(weights: Weights) -> dict[str, Floats]:
        of_test, *of_sets = np.split(weights, ends, axis=1)
        values: dict[str, list[Floats]] = {}
        for of_set, drawn in zip(outside, of_sets, strict=True):
            positive = np.arange(len(test.names) + len(of_set.names)) < len(test.names)
            both_drawn = np.concatenate([of_test, drawn], axis=1)
            for score, values_outside in of_set.scores.items():
                both = np.concatenate([test.scores[score], values_outside])
                of_group = values.setdefault(_ood_metric(of_set.group, score), [])
                of_group.append(auroc(both, positive, both_drawn))
        return {name: np.mean(aurocs, axis=0) for name, aurocs in values.items()}

    clusters = (cluster_indices(of_set.clusters) for of_set in (test, *outside))
    return results | resampled(mean_aurocs, *clusters)


def _ood_metric(group: str, score: ScoreName) -> str:
    """The name of the mean AUROC of a score over the sets of a group."""
    return f"{group}_{score}"


def _tested(
    difference: Difference, seeds: Sequence[int], results: Mapping[tuple[str, int], _Resampled]
) -> list[EndpointResult]:
    arm, minus = difference.arm, difference.minus
    of_ood = [_ood_metric(group, score) for group in _REJECTED_GROUPS for score in difference.ood]
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


def endpoint_result(
    metric: str, arm: str, minus: str, of_arm: Floats, of_minus: Floats
) -> EndpointResult:
    """The difference of a metric between two arms, `arm` minus `minus`.

    `of_arm` and `of_minus` are the values of the metric, (seeds, 1 + resamples), the first column
    without resampling.
    """
    pairs = of_arm - of_minus
    by_seed, resamples = pairs[:, 0], pairs[:, 1:].mean(axis=0)
    seeds_variance = by_seed.var(ddof=1) / len(by_seed)
    lesions_variance = resamples.var(ddof=1)
    variance, difference = seeds_variance + lesions_variance, float(by_seed.mean())
    error = float(np.sqrt(variance))
    freedom = 1.0
    if error:
        parts = seeds_variance**2 / (len(by_seed) - 1) + lesions_variance**2 / (len(resamples) - 1)
        freedom = float(variance**2 / parts)
    reach = error * float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
    p = float(2 * stdtr(freedom, -abs(difference) / error)) if error else float(difference == 0)
    result = EndpointResult(
        metric=metric,
        arm=arm,
        minus=minus,
        difference=difference,
        low=difference - reach,
        high=difference + reach,
        p=p,
        adjusted_p=None,
        detectable=0.0,
        seeds_error=float(np.sqrt(seeds_variance)),
        lesions_error=float(np.sqrt(lesions_variance)),
        freedom=freedom,
        by_seed=tuple(by_seed.tolist()),
    )
    return replace(result, detectable=detectable(result, 1))


def detectable(result: EndpointResult, tests: int) -> float:
    """The smallest difference that is significant with a probability of POWER.

    The statistic has the noncentral t distribution with the standard error and the degrees of
    freedom of the result. The level is divided among `tests` endpoints.
    """
    error = float(np.hypot(result.seeds_error, result.lesions_error))
    critical = stdtrit(result.freedom, 1 - LEVEL / tests / 2)
    return error * float(nctdtrinc(result.freedom, 1 - POWER, critical))


def holm(p_values: Sequence[float]) -> list[float]:
    """p values that control the family-wise error (Holm, Scand. J. Stat. 6, 65, 1979)."""
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values)
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    clipped: list[float] = adjusted.clip(max=1).tolist()
    return clipped


_ENDPOINT_NAMES = METRIC_NAMES | {
    _ood_metric(group, score): f"AUROC against {group} sets by {title}"
    for group in _REJECTED_GROUPS
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
        ("higher" if result.difference > 0 else "lower") if result.shown else "no difference shown",
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

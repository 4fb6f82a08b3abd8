"""Paired comparison of training runs on the same test images, from their stored predictions.

A difference is that of the means over runs. Its variance is the sum of two parts:

    runs    sample variance of the per-seed differences / number of seeds, if both sides have the
            same seeds; else the sum over both sides of the sample variance / number of runs. A
            side with a single run leaves this part out: the interval is then for new images only
    images  variance of the difference when the groups of test images are resampled (cluster
            bootstrap); for the AUROC of OOD scores, with the images of the out-of-distribution sets

Both parts contain the interaction of runs and images, so that the interval is rather too wide than
too narrow. Equal images give equal resamples in all runs, so that metrics of two runs are paired.
Intervals and p values are those of Student's t with Satterthwaite's degrees of freedom (Biometrics
Bulletin 2, 110, 1946). A difference that is not significant is not absent: `detectable` is the
smallest one that such runs would show.
"""

import csv
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy.special import nctdtrinc, stdtr, stdtrit

from eulerlora.scores.ood_scores import ScoreName
from eulerlora_contract.errors import DataError
from eulerlora_contract.sampling import Options
from training.evaluation.intervals import (
    CONFIDENCE,
    Floats,
    Ints,
    Weights,
    cluster_indices,
    resampled,
)
from training.evaluation.metrics import (
    auroc,
    classification_metrics,
    risk_coverage,
    selective_metrics,
)
from training.evaluation.mode_report import familiarity
from training.evaluation.report_schema import PREDICTIONS, TEST

__all__ = [
    "LEVEL",
    "POWER",
    "REJECTED_GROUPS",
    "EndpointResult",
    "Resampled",
    "StoredPredictions",
    "adjusted",
    "detectable",
    "endpoint_result",
    "holm",
    "ood_metric",
    "read_predictions",
    "resampled_metrics",
]

LEVEL, POWER = 1 - CONFIDENCE, 0.8
REJECTED_GROUPS = ("far", "near")
"""Groups of sets that a score should reject; `shifted` images belong to classes."""

Resampled = Mapping[str, Floats]
"""Metrics by name, (1 + resamples,): first those of all images, then those of the resamples."""


@dataclass(frozen=True)
class StoredPredictions:
    """Predictions of a run for n images of a set in one mode.

    Attributes:
        names: (n,).
        clusters: (n,).
        classes: The names of the columns of the probabilities.
        labels: (n,) class indices, -1 for none.
        probabilities: (n, classes).
        scores: (n,) OOD scores, high in distribution.
    """

    group: str
    names: tuple[str, ...]
    clusters: tuple[str, ...]
    classes: tuple[str, ...]
    labels: Ints
    probabilities: Floats
    scores: Mapping[ScoreName, Floats]


def read_predictions(
    folder: Path, options: Options, scores: Sequence[ScoreName] = ()
) -> dict[str, StoredPredictions]:
    """The predictions in a report folder by set: the test part first.

    With scores also the sets of REJECTED_GROUPS.

    Raises:
        DataError: If there is no such file, or it has no predictions for the test part with these
            options, or lacks one of the scores.
    """
    path, stated = folder / PREDICTIONS, asdict(options)
    by_set: dict[str, list[dict[str, str]]] = {TEST: []}
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="surrogateescape", newline="") as file:
            for row in csv.DictReader(file):
                if any(row[name] != str(value) for name, value in stated.items()):
                    continue
                if row["set"] == TEST or (scores and row["group"] in REJECTED_GROUPS):
                    by_set.setdefault(row["set"], []).append(row)
    except (OSError, EOFError, KeyError, csv.Error) as error:
        raise DataError(
            f"{path}: expected predictions as `eulerlora evaluate --out` writes them ({error})"
        ) from error
    if not by_set[TEST]:
        raise DataError(f"{path}: expected predictions for the test part with {options}, got none")
    columns = [name for name in by_set[TEST][0] if name.startswith("p_")]
    classes = tuple(name.removeprefix("p_") for name in columns)
    labels = {name: index for index, name in enumerate(classes)}
    return {
        name: StoredPredictions(
            group=rows[0]["group"],
            names=tuple(row["name"] for row in rows),
            clusters=tuple(row["cluster"] or row["name"] for row in rows),
            classes=classes,
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


def resampled_metrics(sets: Mapping[str, StoredPredictions]) -> Resampled:
    """The metrics of the test part, and `ood_metric` of every group and score of the sets.

    Groups of images are resampled; for a mean AUROC the test part, which is positive, and all sets
    together.
    """
    test = sets[TEST]
    smallest = np.finfo(np.float64).tiny
    log_probabilities = torch.from_numpy(np.log(test.probabilities.clip(min=smallest)))
    wrong = test.probabilities.argmax(axis=1) != test.labels

    def metrics(weights: Weights) -> dict[str, Floats]:
        curve = risk_coverage(test.probabilities.max(axis=1), wrong, weights)
        return classification_metrics(
            log_probabilities[:, None], test.labels, weights
        ) | selective_metrics(curve)

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
                of_group = values.setdefault(ood_metric(of_set.group, score), [])
                of_group.append(auroc(both, positive, both_drawn))
        return {name: np.mean(aurocs, axis=0) for name, aurocs in values.items()}

    clusters = (cluster_indices(of_set.clusters) for of_set in (test, *outside))
    return results | resampled(mean_aurocs, *clusters)


def ood_metric(group: str, score: ScoreName) -> str:
    """The name of the mean AUROC of a score over the sets of a group."""
    return f"{group}_{score}"


@dataclass(frozen=True)
class EndpointResult:
    """A metric of `arm` minus that of `minus`.

    Attributes:
        low: With `high`, the 95% confidence interval.
        p: Two-sided.
        adjusted_p: Corrected by Holm over a family of endpoints; None without a correction.
        detectable: The difference, of either sign, that is significant with a probability of POWER;
            its level is LEVEL, divided by the number of endpoints of the family (the first step of
            Holm).
        seeds_error: Standard error from runs; 0 for a single run on either side.
        images_error: Standard error from images.
        freedom: Degrees of freedom of both together.
        by_seed: The difference for each seed; empty if the sides have other seeds.
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
    images_error: float
    freedom: float
    by_seed: tuple[float, ...]

    @property
    def shown(self) -> bool:
        """True if it is significant, after the correction if there is one."""
        return (self.p if self.adjusted_p is None else self.adjusted_p) < LEVEL

    @property
    def verdict(self) -> str:
        """What is shown about the arm."""
        if not self.shown:
            return "no difference shown"
        return "higher" if self.difference > 0 else "lower"

    @property
    def same_sign(self) -> int:
        """Number of seeds whose difference has the sign of the mean."""
        return sum(value * self.difference > 0 for value in self.by_seed)


def endpoint_result(
    metric: str, arm: str, minus: str, of_arm: Floats, of_minus: Floats, *, paired: bool = True
) -> EndpointResult:
    """The difference of a metric between two arms, `arm` minus `minus`.

    `of_arm` and `of_minus` are the values of the metric, (runs, 1 + resamples), the first column
    without resampling. `paired`: the runs of both have the same seeds in the same order.
    """
    resamples = of_arm[:, 1:].mean(axis=0) - of_minus[:, 1:].mean(axis=0)
    difference = float(of_arm[:, 0].mean() - of_minus[:, 0].mean())
    samples = [of_arm[:, 0] - of_minus[:, 0]] if paired else [of_arm[:, 0], of_minus[:, 0]]
    parts = [(float(resamples.var(ddof=1)), len(resamples) - 1)]  # variance, degrees of freedom
    if min(map(len, samples)) > 1:
        parts += [(float(of.var(ddof=1)) / len(of), len(of) - 1) for of in samples]
    variance = sum(part for part, _ in parts)
    error = float(np.sqrt(variance))
    freedom = 1.0
    if error:
        freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
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
        seeds_error=float(np.sqrt(sum(part for part, _ in parts[1:]))),
        images_error=float(np.sqrt(parts[0][0])),
        freedom=freedom,
        by_seed=tuple(samples[0].tolist()) if paired else (),
    )
    return replace(result, detectable=detectable(result, 1))


def detectable(result: EndpointResult, tests: int) -> float:
    """The smallest difference that is significant with a probability of POWER.

    The statistic has the noncentral t distribution with the standard error and the degrees of
    freedom of the result. The level is divided among `tests` endpoints.
    """
    error = float(np.hypot(result.seeds_error, result.images_error))
    critical = stdtrit(result.freedom, 1 - LEVEL / tests / 2)
    return error * float(nctdtrinc(result.freedom, 1 - POWER, critical))


def adjusted(results: Sequence[EndpointResult]) -> tuple[EndpointResult, ...]:
    """The results of a family of endpoints, corrected for their number."""
    p_values = holm([result.p for result in results])
    return tuple(
        replace(result, adjusted_p=p, detectable=detectable(result, len(results)))
        for result, p in zip(results, p_values, strict=True)
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """p values that control the family-wise error (Holm, Scand. J. Stat. 6, 65, 1979)."""
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values)
    corrected = np.empty_like(values)
    corrected[order] = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    clipped: list[float] = corrected.clip(max=1).tolist()
    return clipped

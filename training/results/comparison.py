"""Paired comparison of a table's rows over seeds and lesions.

Both arms of a difference have the same seeds, training images and test images. A difference is the
mean over seeds. Its variance is the sum of two parts, both of which contain the interaction, so
that the interval is rather too wide than too narrow:

    seeds     sample variance of the per-seed differences / number of seeds
    lesions   variance of the mean over seeds when the lesions are resampled (cluster bootstrap);
              for the AUROC of OOD scores, with the images of the out-of-distribution sets

Intervals and p values are those of Student's t with Satterthwaite's degrees of freedom (Biometrics
Bulletin 2, 110, 1946). They refer to new seeds and new lesions of the same population.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from eulerlora.errors import DataError
from eulerlora.scores.ood_scores import ScoreName
from training.adaptation.train import REPORT
from training.metrics.intervals import CONFIDENCE, Floats
from training.reproduction.runs import TableRun
from training.reproduction.table import Arm, Difference, Table
from training.results.predictions import (
    GROUPS,
    Resampled,
    ood_metric,
    read_predictions,
    read_scores,
    resampled_metrics,
    resampled_ood_metrics,
)

FEWEST_SEEDS = 2


@dataclass(frozen=True)
class EndpointResult:
    """A metric of `arm` minus that of `minus`.

    by_seed: one difference for each seed. low, high: 95% confidence interval. seeds_error,
    lesions_error: standard errors from seeds and from lesions. p: two-sided. adjusted_p: corrected
    by Holm over all secondary endpoints; None for the primary one.
    """

    metric: str
    arm: str
    minus: str
    difference: float
    low: float
    high: float
    p: float
    adjusted_p: float | None
    seeds_error: float
    lesions_error: float
    by_seed: tuple[float, ...]

    @property
    def same_sign(self) -> int:
        """Number of seeds whose difference has the sign of the mean."""
        return sum(value * self.difference > 0 for value in self.by_seed)


@dataclass(frozen=True)
class Comparison:
    """seeds: those with results of all arms. primary, secondary: the tested endpoints."""

    seeds: tuple[int, ...]
    primary: EndpointResult | None
    secondary: tuple[EndpointResult, ...]


def compare(table: Table, runs: Sequence[TableRun]) -> Comparison | None:
    """Returns the tested endpoints, or None with fewer than two seeds that have all runs.

    table: with endpoints. Raises DataError if two runs have other test images.
    """
    assert table.endpoints is not None
    first = [table.endpoints.primary] if table.endpoints.primary else []
    differences = (*first, *table.family)
    arms = list({arm.name: arm for d in differences for arm in (d.arm, d.minus)}.values())
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
    results = _resampled_results(arms, seeds, finished)
    scored = [difference for difference in differences if difference.ood]
    if scored:
        of_scored = list({arm.name: arm for d in scored for arm in (d.arm, d.minus)}.values())
        scores = list(dict.fromkeys(score for d in scored for score in d.ood))
        others = _resampled_ood_results(of_scored, seeds, finished, scores)
        results = {key: {**metrics, **others.get(key, {})} for key, metrics in results.items()}
    primary = [tested for d in first for tested in _tested(d, seeds, results)]
    secondary = [tested for d in table.family for tested in _tested(d, seeds, results)]
    adjusted = holm([tested.p for tested in secondary])
    return Comparison(
        seeds,
        primary[0] if primary else None,
        tuple(
            EndpointResult(**vars(tested) | {"adjusted_p": p})
            for tested, p in zip(secondary, adjusted, strict=True)
        ),
    )


def endpoint_result(
    metric: str, arm: str, minus: str, of_arm: Floats, of_minus: Floats
) -> EndpointResult:
    """Returns the difference of a metric. of_arm, of_minus: (seeds, 1 + resamples)."""
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
    return EndpointResult(
        metric=metric,
        arm=arm,
        minus=minus,
        difference=difference,
        low=difference - reach,
        high=difference + reach,
        p=p,
        adjusted_p=None,
        seeds_error=float(np.sqrt(seeds_variance)),
        lesions_error=float(np.sqrt(lesions_variance)),
        by_seed=tuple(by_seed.tolist()),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p values that control the family-wise error (Holm, Scand. J. Stat. 6, 65, 1979)."""
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values)
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    clipped: list[float] = adjusted.clip(max=1).tolist()
    return clipped


def _resampled_results(
    arms: Sequence[Arm], seeds: Sequence[int], runs: Mapping[tuple[str | None, int], TableRun]
) -> dict[tuple[str, int], Resampled]:
    """Returns the metrics by name of the arm and by seed."""
    folders = {(arm, seed): runs[arm.variant, seed].out / REPORT for arm in arms for seed in seeds}
    predictions = {key: read_predictions(folder, key[0].mode) for key, folder in folders.items()}
    images = {key: read.names for key, read in predictions.items()}
    first = next(iter(images.values()))
    for key, names in images.items():
        if names != first:
            raise DataError(
                f"{folders[key]}: expected the test images of the other runs, got others"
            )
    return {(arm.name, seed): resampled_metrics(p) for (arm, seed), p in predictions.items()}


def _resampled_ood_results(
    arms: Sequence[Arm],
    seeds: Sequence[int],
    runs: Mapping[tuple[str | None, int], TableRun],
    scores: Sequence[ScoreName],
) -> dict[tuple[str, int], Resampled]:
    """Returns the OOD metrics by name of the arm and by seed."""
    results: dict[tuple[str, int], Resampled] = {}
    first: dict[str, tuple[str, ...]] | None = None
    for arm in arms:
        for seed in seeds:
            folder = runs[arm.variant, seed].out / REPORT
            sets = read_scores(folder, arm.mode, scores)
            images = {name: of_set.names for name, of_set in sets.items()}
            first = first or images
            if images != first:
                raise DataError(
                    f"{folder}: expected the out-of-distribution images of the other runs, got "
                    "others"
                )
            results[arm.name, seed] = resampled_ood_metrics(sets)
    return results


def _tested(
    difference: Difference, seeds: Sequence[int], results: Mapping[tuple[str, int], Resampled]
) -> list[EndpointResult]:
    """Returns a tested difference for each of the metrics, and each group and score of `ood`."""
    arm, minus = difference.arm.name, difference.minus.name
    of_ood = [ood_metric(group, score) for group in GROUPS for score in difference.ood]
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

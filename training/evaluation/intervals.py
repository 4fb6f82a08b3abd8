"""95% confidence statements about clustered images.

Intervals of metrics by bootstrap and of proportions; thresholds that a share of new units reaches.

Values and hits are arrays of n images or units, and clusters are integers that say which of them
are not independent. Intervals are two-sided and bounds one-sided, both at 95%; without clusters,
those of proportions are exact. Equal clusters give equal resamples, so that intervals of several
metrics are paired. What the images do not define is None, and what too few clusters or equal
resamples leave without an interval has a value alone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv, stdtrit

__all__ = [
    "CONFIDENCE",
    "MIN_CLUSTERS",
    "RESAMPLES",
    "Bools",
    "Estimate",
    "Estimates",
    "Floats",
    "Ints",
    "Proportion",
    "ToleranceBound",
    "Weights",
    "bootstrap",
    "cluster_indices",
    "lower_bound",
    "proportion",
    "ratio",
    "resampled",
    "share_estimates",
    "share_lower_bound",
    "standard_error",
    "tolerance_bound",
    "tolerance_sample_size",
    "unit_weights",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Weights = NDArray[np.float64]
"""(resamples, n): how often each of n images counts in each resample."""

MIN_CLUSTERS = 20
"""Clusters of every set that a percentile bootstrap needs; with fewer, its intervals are much too
narrow."""
RESAMPLES = 1000
_CHUNK = 100
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """The value of a metric with its 95% confidence interval.

    There is none if there are fewer than MIN_CLUSTERS clusters, which a bootstrap needs, also of
    either kind of images that the metric compares, or if all resamples give the same value, which
    says nothing about other images.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def differs(self) -> bool:
        """True if there is an interval and it does not contain 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def text(self, form: str = ".3f") -> str:
        if self.low is None or self.high is None:
            return f"{self.value:{form}} (no interval)"
        return f"{self.value:{form}} [{self.low:{form}}, {self.high:{form}}]"


Estimates = Mapping[str, Estimate | None]
"""Estimates by metric name; None if the images do not define the metric."""


@dataclass(frozen=True)
class Proportion:
    """A share of images, with its two-sided 95% confidence interval by `proportion`.

    Attributes:
        clusters: Number of lesions or other independent units that the images show.
    """

    hits: int
    images: int
    clusters: int
    share: float
    low: float
    high: float

    def text(self) -> str:
        return f"{self.share:.3f} [{self.low:.3f}, {self.high:.3f}]"


def bootstrap(
    metrics: Callable[[Weights], Mapping[str, Floats]],
    *clusters: Ints,
    compared: Mapping[str, Bools] | None = None,
) -> dict[str, Estimate | None]:
    """Metrics of the images with percentile bootstrap intervals from 1,000 resamples.

    Each resample draws as many clusters as there are, with replacement, and keeps the images of a
    cluster together (Davison and Hinkley, Bootstrap Methods and their Application, 1997, 3.8).
    Resamples without a defined value do not enter the interval. A set with fewer than MIN_CLUSTERS
    clusters leaves all metrics without an interval.

    Args:
        metrics: Takes weights of all images and returns (resamples,) values by name.
        clusters: (n,) cluster index of each image, one array for each independently sampled set.
            The weights list the images of these sets in this order. Equal clusters give equal
            resamples, whatever the metrics.
        compared: By metric of a single set, which of its images, (n,), the metric compares with
            the others. Neither may have fewer than MIN_CLUSTERS clusters.
    """
    if _too_few(*clusters):
        of_images = metrics(unit_weights(sum(map(len, clusters))))
        return {
            name: None if np.isnan(value) else Estimate(float(value))
            for name, (value,) in of_images.items()
        }
    estimates = {
        name: _percentile_estimate(values) for name, values in resampled(metrics, *clusters).items()
    }
    for name, chosen in (compared or {}).items():
        estimate, (indices,) = estimates[name], clusters
        if estimate is not None and _too_few(indices[chosen], indices[~chosen]):
            estimates[name] = Estimate(estimate.value)
    return estimates


def _too_few(*clusters: Ints) -> bool:
    return min(len(np.unique(indices)) for indices in clusters) < MIN_CLUSTERS


def share_estimates(hits: Mapping[str, Bools], clusters: Ints) -> dict[str, Estimate | None]:
    """The shares of hits with the interval of `proportion` by name; None for no images."""
    shares = {name: proportion(of_name, clusters) for name, of_name in hits.items()}
    return {
        name: None if share is None else Estimate(share.share, share.low, share.high)
        for name, share in shares.items()
    }


def resampled(
    metrics: Callable[[Weights], Mapping[str, Floats]], *clusters: Ints
) -> dict[str, Floats]:
    """Metrics (1 + RESAMPLES,): first of the images themselves, then of the resamples.

    Arguments as in `bootstrap`.
    """
    random = np.random.default_rng(0)
    chunks = [metrics(unit_weights(sum(map(len, clusters))))]
    for _ in range(0, RESAMPLES, _CHUNK):
        weights = [_resampled_weights(indices, random) for indices in clusters]
        chunks.append(metrics(np.concatenate(weights, axis=1)))
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def unit_weights(images: int) -> Weights:
    """Ones, (1, images): every image counts once."""
    return np.ones((1, images))


def standard_error(values: Floats, groups: Ints) -> float:
    """Of the mean of values (n,) with a group each, (n,); at least two groups.

    The values of a group may depend on each other. With one value in each group it is the usual
    one, from the standard deviation with n - 1.
    """
    indices = np.unique(groups, return_inverse=True)[1]
    sums = np.bincount(indices, weights=values - values.mean())
    count = len(sums)
    return float(math.sqrt(count / (count - 1) * (sums**2).sum()) / len(values))


def cluster_indices(clusters: Sequence[str]) -> Ints:
    """(n,) cluster indices from the cluster name of each image."""
    indices: Ints = np.unique(np.array(clusters, dtype=np.str_), return_inverse=True)[1]
    return indices


def ratio(numerator: Floats, denominator: Floats) -> Floats:
    """numerator / denominator, NaN where the denominator is 0."""
    undefined = np.full(np.broadcast_shapes(numerator.shape, denominator.shape), np.nan)
    ratios: Floats = np.divide(numerator, denominator, out=undefined, where=denominator > 0)
    return ratios


def proportion(hits: Bools, clusters: Ints) -> Proportion | None:
    """The share of hits among images with its interval, or None for no images.

    `hits` and `clusters`, the cluster index of each image, are (n,). The interval is that of Korn
    and Graubard (Survey Methodology 24, 193, 1998): the interval of Clopper and Pearson (Biometrika
    26, 404, 1934), with the effective number of images in place of their number. If all clusters
    have one image, both are the same, and the interval is exact.
    """
    images = len(hits)
    if not images:
        return None
    count, effective = _effective_images(hits, clusters, (1 - CONFIDENCE) / 2)
    low, high = _clopper_pearson(effective / images * int(hits.sum()), effective)
    return Proportion(int(hits.sum()), images, count, float(hits.mean()), low, high)


def _clopper_pearson(hits: float, images: float) -> tuple[float, float]:
    """The two-sided 95% interval of Clopper and Pearson; the counts may be fractions.

    For whole counts, `hits` or more have probability 2.5% at the lower limit, and `hits` or fewer
    at the upper one. Both are quantiles of beta distributions.
    """
    tail, misses = (1 - CONFIDENCE) / 2, images - hits
    return (
        float(betaincinv(hits, misses + 1, tail)) if hits else 0.0,
        float(betaincinv(hits + 1, misses, 1 - tail)) if misses else 1.0,
    )


def _effective_images(hits: Bools, clusters: Ints, tail: float) -> tuple[int, float]:
    """The number of clusters, and of independent images with the same information.

    `tail` is the probability beyond a limit of the interval.

    The latter is the number of images over the design effect, the factor by which clusters
    increase the variance of the share (Taylor variance of a ratio), times the squared ratio of
    Student quantiles that accounts for the number of clusters. It is at least 1 and at most the
    number of images. If all images are hits or none is, the effect is unknown and the number of
    clusters takes its place.
    """
    indices = np.unique(clusters, return_inverse=True)[1]
    images, share = len(hits), hits.mean()
    residuals = np.bincount(indices, weights=hits - share)
    count = len(residuals)
    if share in (0, 1) or count in (1, images):
        return count, float(count)
    variance = count / (count - 1) * (residuals**2).sum() / images**2
    effect = variance / (share * (1 - share) / (images - 1))
    student = stdtrit(images - 1, tail) / stdtrit(count - 1, tail)
    effective = images * student**2 / max(effect, 1)
    return count, float(max(effective, 1))


def _resampled_weights(clusters: Ints, random: Generator) -> Weights:
    """How often each image is drawn, (_CHUNK, n)."""
    count = int(clusters.max()) + 1
    drawn = random.integers(count, size=(_CHUNK, count)) + count * np.arange(_CHUNK)[:, None]
    times = np.bincount(drawn.ravel(), minlength=_CHUNK * count).reshape(_CHUNK, count)
    weights: Weights = times[:, clusters].astype(np.float64)
    return weights


def _percentile_estimate(values: Floats) -> Estimate | None:
    """Values are (1 + resamples,), first that of the images themselves."""
    if np.isnan(values[0]):
        return None
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.nanpercentile(values[1:], [tail, 100 - tail])
    return Estimate(float(values[0]), *((float(low), float(high)) if low < high else ()))


@dataclass(frozen=True)
class ToleranceBound:
    """A threshold that at least `share` of new units reach, with `confidence`.

    Attributes:
        threshold: Value of the unit at rank `misses`, counted from the lowest one.
        units: Their number.
        groups: Number of independent groups of them.
        effective: Number of independent units with the same information.
    """

    threshold: float
    misses: int
    units: int
    groups: int
    effective: float
    share: float

    @property
    def confidence(self) -> float:
        """The probability that at least `share` of the population reaches such a threshold.

        That share has a beta distribution, whatever that of the values (Wilks, Ann. Math. Statist.
        12, 91, 1941); the number of misses depends on the number of units only.
        """
        misses = self.effective / self.units * self.misses
        return float(1 - betainc(self.effective - misses, misses + 1, self.share))

    @property
    def lower_bound(self) -> float:
        """The lower bound of the share that reaches the threshold, with CONFIDENCE."""
        weight = self.effective / self.units  # 1 for independent units
        return lower_bound(weight * (self.units - self.misses), self.effective)


def tolerance_bound(values: Floats, share: float, groups: Ints | None = None) -> ToleranceBound:
    """The highest threshold that at least `share` of new units reach with CONFIDENCE.

    With fewer than `tolerance_sample_size(share)` units it is the lowest value, whose confidence is
    lower. It is exact if all groups have one unit; otherwise the number of units is the effective
    one of `proportion`, which is that of the groups without a miss.

    Args:
        values: (n,), one for each unit, n > 0.
        share: In (0, 1).
        groups: (n,) the group of each unit; None if each unit is one.
    """
    units, order = len(values), np.argsort(values, kind="stable")

    def bound(misses: int) -> ToleranceBound:
        count, effective = units, float(units)
        if groups is not None:
            reached = np.arange(units) >= misses  # by rank: equal values are different units
            count, effective = _effective_images(reached, groups[order], 1 - CONFIDENCE)
        return ToleranceBound(float(values[order[misses]]), misses, units, count, effective, share)

    if groups is None or len(np.unique(groups)) == units:
        return bound(_allowed_misses(units, share) or 0)
    allowed = bound(0)
    for misses in range(1, units):
        tested = bound(misses)
        if tested.lower_bound < share:
            break
        allowed = tested
    return allowed


def lower_bound(hits: float, units: float) -> float:
    """The one-sided 95% lower bound of a share (Clopper and Pearson, Biometrika 26, 1934).

    It also holds for the share of new units that reach a `tolerance_bound` with these hits. The
    counts may be fractions.
    """
    return float(betaincinv(hits, units - hits + 1, 1 - CONFIDENCE)) if hits else 0.0


def share_lower_bound(hits: Bools, groups: Ints) -> float:
    """The one-sided 95% lower bound of a share of units; 0 without any.

    `hits` and `groups`, the group of each unit, are (n,). It is exact if all groups have one unit,
    and otherwise that of the effective number of units, as in `proportion`.
    """
    if not hits.any():
        return 0.0
    _, effective = _effective_images(hits, groups, 1 - CONFIDENCE)
    return lower_bound(effective / len(hits) * int(hits.sum()), effective)


@cache
def _allowed_misses(units: int, share: float) -> int | None:
    """The largest number of misses with a lower bound of at least `share`.

    None if the bound is lower even without a miss.
    """
    misses = np.arange(units)
    reached = betaincinv(units - misses, misses + 1, 1 - CONFIDENCE) >= share
    return int(reached.sum()) - 1 if reached.any() else None


def tolerance_sample_size(share: float) -> int:
    """The smallest number of units that establishes a share without a miss; 59 for 0.95."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(share))

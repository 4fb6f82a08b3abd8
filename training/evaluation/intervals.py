"""95% confidence intervals of many figures at once, from the same resamples of images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Weights = NDArray[np.float64]
"""(resamples, n): how often each of n images counts; a row of ones is the images themselves."""

RESAMPLES = 1000
AT_ONCE = 100
CONFIDENCE = 0.95
SEED = 0


@dataclass(frozen=True)
class Estimate:
    """A figure, and its 95% confidence interval."""

    value: float
    low: float
    high: float


Estimates = Mapping[str, Estimate | None]
"""Figures by name; None for one that the images do not define."""


def estimates(
    figures: Callable[[Weights], Mapping[str, Floats]], *samples: Ints
) -> dict[str, Estimate | None]:
    """Figures of the images themselves, and the range of 95% of 1,000 resamples.

    A percentile bootstrap over clusters (Davison and Hinkley, Bootstrap Methods and their
    Application, 1997, 3.8): as many clusters as there are are drawn with replacement, all images
    of a cluster together. samples: (n,) the number of each image's cluster, one array for each
    set of images that was sampled on its own; `figures` gets weights of all sets' images in their
    order, and returns (resamples,) each. Whatever the figures, the resamples of equal samples are
    the same. Resamples in which a figure is not a number are left out of its interval.
    """
    random = np.random.default_rng(SEED)
    found = [figures(once(sum(map(len, samples))))]
    for _ in range(0, RESAMPLES, AT_ONCE):
        weights = [_drawn(clusters, random) for clusters in samples]
        found.append(figures(np.concatenate(weights, axis=1)))
    return {name: _estimate(np.concatenate([each[name] for each in found])) for name in found[0]}


def once(images: int) -> Weights:
    """(1, images) ones: every image counts once."""
    return np.ones((1, images))


def numbered(clusters: Sequence[str]) -> Ints:
    """(n,) the number of each image's cluster, from the clusters' names."""
    numbers: Ints = np.unique(np.array(clusters, dtype=np.str_), return_inverse=True)[1]
    return numbers


def share(counted: Floats, of: Floats) -> Floats:
    """counted / of, not a number where that is 0 / 0."""
    nothing = np.full(np.broadcast_shapes(counted.shape, of.shape), np.nan)
    shares: Floats = np.divide(counted, of, out=nothing, where=of > 0)
    return shares


def _drawn(clusters: Ints, random: Generator) -> Weights:
    """(AT_ONCE, n) how often each image is drawn."""
    count = int(clusters.max()) + 1
    drawn = random.integers(count, size=(AT_ONCE, count)) + count * np.arange(AT_ONCE)[:, None]
    times = np.bincount(drawn.ravel(), minlength=AT_ONCE * count).reshape(AT_ONCE, count)
    weights: Weights = times[:, clusters].astype(np.float64)
    return weights


def _estimate(values: Floats) -> Estimate | None:
    """values: the figure of the images themselves, then of each resample."""
    if np.isnan(values[0]):
        return None
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.nanpercentile(values[1:], [tail, 100 - tail])
    return Estimate(float(values[0]), float(low), float(high))

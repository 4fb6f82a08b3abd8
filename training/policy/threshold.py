"""The urgent threshold for a required sensitivity to melanoma, with exact confidence bounds.

The score of an image is the summed probability of the malignant classes. An image is urgent if its
score is at or above the threshold. Images of one lesion are not independent, so sensitivity counts
lesions: a lesion is a hit if all of its images are urgent.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from training.metrics.intervals import CONFIDENCE, Bools, Floats

SIGNIFICANT_DIGITS = 4

Names = NDArray[np.str_]


@dataclass(frozen=True)
class Sensitivity:
    """Hits of a number of lesions, and the required sensitivity.

    lower_bound: one-sided exact 95% lower confidence bound. established: True if the bound reaches
    `required`.
    """

    hits: int
    lesions: int
    required: float

    @property
    def share(self) -> float:
        return self.hits / self.lesions

    @property
    def lower_bound(self) -> float:
        return lower_bound(self.hits, self.lesions)

    @property
    def established(self) -> bool:
        return self.lower_bound >= self.required


@dataclass(frozen=True)
class ThresholdCoverage:
    """The share of all images below a threshold, and the melanomas among them.

    missed_lesions: melanomas with at least one image below the threshold. missed_images: images
    of melanoma below it.
    """

    coverage: float
    threshold: float
    missed_lesions: int
    missed_images: int


def lower_bound(hits: int, lesions: int) -> float:
    """Returns the one-sided 95% lower bound of Clopper and Pearson (Biometrika 26, 404, 1934).

    It is also exact if the threshold was set on the same lesions to give this number of misses,
    because the population share above an order statistic has the same beta distribution (Wilks,
    Ann. Math. Statist. 12, 91, 1941). The number of misses must depend on `lesions` only.
    """
    return float(betaincinv(hits, lesions - hits + 1, 1 - CONFIDENCE)) if hits else 0.0


def allowed_misses(lesions: int, required: float) -> int | None:
    """Returns the largest number of misses with a lower bound of at least `required`.

    None if the bound is lower even without a miss; 0.95 needs at least 59 lesions.
    """
    if lower_bound(lesions, lesions) < required:
        return None
    return next(
        misses - 1
        for misses in range(1, lesions + 1)
        if lower_bound(lesions - misses, lesions) < required
    )


def min_lesions(required: float) -> int:
    """Returns the smallest number of lesions that establishes `required` without a miss."""
    return next(count for count in itertools.count(1) if lower_bound(count, count) >= required)


def lesion_scores(scores: Floats, lesions: Names) -> Floats:
    """Returns the lowest score of each lesion's images. scores, lesions: (n,)."""
    _, index = np.unique(lesions, return_inverse=True)
    lowest = np.full(index.max(initial=-1) + 1, np.inf)
    np.minimum.at(lowest, index, scores)
    return lowest


def lesions_with_all(flags: Bools, lesions: Names) -> Bools:
    """Returns for each lesion whether all its images have the flag. flags, lesions: (n,)."""
    return np.array(lesion_scores(flags.astype(np.float64), lesions) == 1)


def urgent_threshold(melanomas: Floats, required: float) -> float:
    """Returns the highest threshold whose lower bound reaches `required`.

    melanomas: (m,) scores of lesions, m > 0. With too few lesions, returns the highest threshold
    without a miss. The value is rounded down to four significant digits, so that rounding of
    scores elsewhere does not turn a tie into a miss.
    """
    misses = allowed_misses(len(melanomas), required) or 0
    return round_down(float(np.sort(melanomas)[misses]))


def sensitivity_at(melanomas: Floats, threshold: float, required: float) -> Sensitivity:
    """Returns the sensitivity of a threshold. melanomas: (m,) scores of lesions."""
    return Sensitivity(int((melanomas >= threshold).sum()), len(melanomas), required)


def coverage_table(
    scores: Floats, melanoma: Bools, lesions: Names, shares: Sequence[float]
) -> list[ThresholdCoverage]:
    """Returns, for each share, the highest threshold with at most that share of images below it.

    scores, melanoma, lesions: (n,), of all images.
    """
    melanomas = lesion_scores(scores[melanoma], lesions[melanoma])
    ranked = np.sort(scores)
    rows = []
    for share in shares:
        below = math.floor(share * len(scores))
        threshold = float(ranked[below]) if below < len(scores) else math.inf
        rows.append(
            ThresholdCoverage(
                coverage=float((scores < threshold).mean()),
                threshold=threshold,
                missed_lesions=int((melanomas < threshold).sum()),
                missed_images=int((scores[melanoma] < threshold).sum()),
            )
        )
    return rows


def round_down(value: float) -> float:
    """Returns a positive number rounded down to four significant digits."""
    exact = Decimal(value)
    return float(exact.quantize(_unit(exact), ROUND_FLOOR))


def round_up(value: float) -> float:
    """Returns the next larger number with four significant digits; 0.001 for 0."""
    exact = Decimal(value)
    rounded = exact.quantize(_unit(exact), ROUND_CEILING)
    return float(rounded if rounded > exact else rounded + _unit(exact))


def _unit(value: Decimal) -> Decimal:
    """Returns the unit of the last significant digit."""
    return Decimal(1).scaleb(value.adjusted() - SIGNIFICANT_DIGITS + 1)

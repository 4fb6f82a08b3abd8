"""The urgent threshold that finds a wanted share of melanomas, and how sure that share is.

An image's score is the summed probability of the malignant group; at or above the threshold it is
urgent. Images of one lesion are no independent evidence, so shares are counted over lesions: one
counts as found where all its images are.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

CONFIDENCE = 0.95
DIGITS = 4

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Names = NDArray[np.str_]


@dataclass(frozen=True)
class Share:
    """So many lesions found of all, and what that says of others like them.

    lower_bound: one-sided exact 95% lower confidence bound of the share. established: whether
    it reaches `wanted`.
    """

    found: int
    lesions: int
    wanted: float

    @property
    def share(self) -> float:
        return self.found / self.lesions

    @property
    def lower_bound(self) -> float:
        return lower_bound(self.found, self.lesions)

    @property
    def established(self) -> bool:
        return self.lower_bound >= self.wanted


@dataclass(frozen=True)
class Coverage:
    """What a higher threshold would leave: the share of all images that lie below `threshold`.

    missed_lesions, missed_images: melanomas of which an image, or which, lie below it.
    """

    coverage: float
    threshold: float
    missed_lesions: int
    missed_images: int


def lower_bound(found: int, of: int) -> float:
    """One-sided 95% lower confidence bound of a share: Clopper and Pearson (Biometrika 26, 404).

    It is also exact for a threshold that was set to miss so many of just these lesions: the share
    above an order statistic has this very beta distribution (Wilks, Ann. Math. Statist. 12, 91,
    1941), as long as the number of misses was settled by `of` alone.
    """
    return float(betaincinv(found, of - found + 1, 1 - CONFIDENCE)) if found else 0.0


def allowed_misses(lesions: int, wanted: float) -> int | None:
    """The most misses with which the lower bound still reaches `wanted`.

    None where not even a set without a miss is large enough; 59 are the least for 0.95.
    """
    if lower_bound(lesions, lesions) < wanted:
        return None
    return next(
        misses - 1
        for misses in range(1, lesions + 1)
        if lower_bound(lesions - misses, lesions) < wanted
    )


def least_lesions(wanted: float) -> int:
    """How many lesions without a miss are the least that can establish `wanted`."""
    return next(count for count in itertools.count(1) if lower_bound(count, count) >= wanted)


def lesion_scores(scores: Floats, lesions: Names) -> Floats:
    """The lowest score of each lesion's images. scores, lesions: (n,)."""
    _, index = np.unique(lesions, return_inverse=True)
    lowest = np.full(index.max(initial=-1) + 1, np.inf)
    np.minimum.at(lowest, index, scores)
    return lowest


def urgent_threshold(melanomas: Floats, wanted: float) -> float:
    """The highest threshold with which the lower bound reaches `wanted`.

    melanomas: (m,) scores of lesions, m > 0. Where they are too few for that, the highest
    threshold that misses none of them. Rounded down to four digits, so that rounding elsewhere
    does not turn a tie into a miss.
    """
    misses = allowed_misses(len(melanomas), wanted) or 0
    return rounded_down(float(np.sort(melanomas)[misses]))


def share_found(melanomas: Floats, threshold: float, wanted: float) -> Share:
    """How many lesions' scores reach the threshold."""
    return Share(int((melanomas >= threshold).sum()), len(melanomas), wanted)


def coverages(
    scores: Floats, melanoma: Bools, lesions: Names, shares: Sequence[float]
) -> list[Coverage]:
    """For each of `shares`: the threshold that leaves that much, or ties' worth less, below it.

    scores, melanoma, lesions: (n,), of all images.
    """
    own = lesion_scores(scores[melanoma], lesions[melanoma])
    ranked = np.sort(scores)
    found = []
    for share in shares:
        left = math.floor(share * len(scores))
        threshold = float(ranked[left]) if left < len(scores) else math.inf
        found.append(
            Coverage(
                coverage=float((scores < threshold).mean()),
                threshold=threshold,
                missed_lesions=int((own < threshold).sum()),
                missed_images=int((scores[melanoma] < threshold).sum()),
            )
        )
    return found


def rounded_down(value: float) -> float:
    """A positive number, cut to four significant digits."""
    exact = Decimal(value)
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - DIGITS + 1), ROUND_FLOOR))

"""Per-class sensitivity with exact confidence intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import betaincinv
from torch import Tensor

CONFIDENCE = 0.95
FIRST = "mel"


@dataclass(frozen=True)
class Sensitivity:
    """The share of a class's images that get its label.

    hits of images; low, high: exact two-sided 95% confidence interval of the share.
    """

    hits: int
    images: int
    sensitivity: float
    low: float
    high: float


def class_sensitivities(
    predicted: Tensor, labels: Tensor, classes: Sequence[str]
) -> dict[str, Sensitivity | None]:
    """Each class's sensitivity, melanoma first where there is one; None for one without images.

    predicted, labels: (n,) class indices.
    """
    found = {}
    for index, name in enumerate(classes):
        own = predicted[labels == index] == index
        found[name] = sensitivity(int(own.sum()), len(own)) if len(own) else None
    first = {FIRST: found[FIRST]} if FIRST in found else {}
    return first | found


def sensitivity(hits: int, images: int) -> Sensitivity:
    """The share and its interval: Clopper and Pearson (Biometrika 26, 404, 1934).

    low is the share at which `hits` or more have probability 2.5%, high the one at which `hits`
    or fewer have; both are quantiles of beta distributions.
    """
    tail = (1 - CONFIDENCE) / 2
    misses = images - hits
    return Sensitivity(
        hits=hits,
        images=images,
        sensitivity=hits / images,
        low=float(betaincinv(hits, misses + 1, tail)) if hits else 0.0,
        high=float(betaincinv(hits + 1, misses, 1 - tail)) if misses else 1.0,
    )

"""Per-class sensitivity, specificity and predictive value with exact confidence intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import betaincinv

from training.evaluation.intervals import CONFIDENCE, Ints

FIRST = "mel"


@dataclass(frozen=True)
class Proportion:
    """hits of images; low, high: exact two-sided 95% confidence interval of their share."""

    hits: int
    images: int
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class ClassFigures:
    """How one class's label is given.

    sensitivity: of the class's images, those that get its label. specificity: of the others,
    those that get another one. predictive_value: of the images that get its label, those of the
    class. None where there are no such images.
    """

    sensitivity: Proportion | None
    specificity: Proportion | None
    predictive_value: Proportion | None


def class_figures(predicted: Ints, labels: Ints, classes: Sequence[str]) -> dict[str, ClassFigures]:
    """Each class's figures, melanoma first where there is one.

    predicted, labels: (n,) class indices.
    """
    found = {}
    for index, name in enumerate(classes):
        given, true = predicted == index, labels == index
        both = int((given & true).sum())
        neither = int((~given & ~true).sum())
        found[name] = ClassFigures(
            sensitivity=proportion(both, int(true.sum())),
            specificity=proportion(neither, int((~true).sum())),
            predictive_value=proportion(both, int(given.sum())),
        )
    first = {FIRST: found[FIRST]} if FIRST in found else {}
    return first | found


def proportion(hits: int, images: int) -> Proportion | None:
    """The share and its interval: Clopper and Pearson (Biometrika 26, 404, 1934).

    low is the share at which `hits` or more have probability 2.5%, high the one at which `hits`
    or fewer have; both are quantiles of beta distributions. None of no images.
    """
    if not images:
        return None
    tail = (1 - CONFIDENCE) / 2
    misses = images - hits
    return Proportion(
        hits=hits,
        images=images,
        share=hits / images,
        low=float(betaincinv(hits, misses + 1, tail)) if hits else 0.0,
        high=float(betaincinv(hits + 1, misses, 1 - tail)) if misses else 1.0,
    )

"""Prediction sets: class-conditional split conformal prediction with LAC scores.

The score of an image and a class is 1 - p, where p is the predicted probability of the class (least
ambiguous set-valued classifiers: Sadinle, Lei and Wasserman, J. Am. Stat. Assoc. 114, 223, 2019).
Each class has its own threshold, from calibration data of this class (label-conditional or
Mondrian conformal prediction: Vovk, "Conditional validity of inductive conformal predictors",
Proc. Mach. Learn. Res. 25, 475, 2012).

The exchangeable unit is a lesion, or where none is known the images of a class in a group, such as
a patient; its score is the largest of its images. If a new unit of a class and the calibration
units of this class are exchangeable, the sets of all images of the new unit contain the class with
at least the stated probability, the coverage. This holds for the calibration at hand with the
confidence of the class (validity conditional on the calibration, section 4 of the same paper), and
for classes with fewer units on average over calibrations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from eulerlora_contract.checkpoints import Unit
from eulerlora_contract.sampling import Options
from eulerlora_contract.settings import Count, Probability, Settings, Sha256

ALWAYS_INCLUDED = 1.0
"""The threshold of a class that is in every set."""


class PredictionSetCalibration(Settings):
    """Thresholds of class-conditional prediction sets (`eulerlora.scores.prediction_sets`).

    Attributes:
        coverage: Stated probability that a set contains the true class.
        options: Of the predictions that the thresholds were fitted to.
        thresholds: One per class; a class with probability p is in the set if 1 - p is at most its
            threshold, and always if that is 1.
        unit: What was counted.
        units: Number of calibration units of each class.
        confidences: One per class, that at least the coverage of new units of the class is covered.
        data_sha256: Digest of the calibration images' names, labels and units.
    """

    coverage: Annotated[float, Field(gt=0, lt=1)]
    options: Options
    thresholds: tuple[Probability, ...]
    unit: Unit
    units: tuple[Count, ...]
    confidences: tuple[Probability, ...]
    data: str
    data_sha256: Sha256


@dataclass(frozen=True)
class PredictionSets:
    """The prediction sets of n images.

    Attributes:
        included: (n, classes) bool.
        labels: The names of the included classes.
        unit: What the calibration counted.
    """

    included: Tensor
    labels: tuple[tuple[str, ...], ...]
    coverage: float
    unit: str
    calibrated_on: str


def min_units(coverage: float) -> int:
    """The fewest units whose largest score covers on average: 9 for 0.9, 19 for 0.95."""
    exact = Fraction(repr(coverage))
    return math.ceil(exact / (1 - exact))


def lac_scores(probabilities: Tensor, labels: Tensor) -> Tensor:
    """(n,) 1 - p of the true class, from probabilities (n, classes) and labels (n,)."""
    return 1 - probabilities.gather(1, labels.unsqueeze(1)).squeeze(1)


def included_classes(probabilities: Tensor, thresholds: Sequence[float]) -> Tensor:
    """(n, classes) bool, True for a class with 1 - p of at most its threshold.

    `probabilities` are (n, classes), float64 as in the calibration.
    """
    return 1 - probabilities <= torch.tensor(thresholds, dtype=torch.float64)


def prediction_sets(
    probabilities: Tensor, calibration: PredictionSetCalibration, classes: Sequence[str]
) -> PredictionSets:
    """Prediction sets of n images, from probabilities (n, classes) float64.

    `calibration` was fitted with the options of these probabilities; `classes` are in their order.
    """
    included = included_classes(probabilities, calibration.thresholds)
    return PredictionSets(
        included=included,
        labels=tuple(
            tuple(name for name, inside in zip(classes, row, strict=True) if inside)
            for row in included.tolist()
        ),
        coverage=calibration.coverage,
        unit=calibration.unit,
        calibrated_on=calibration.data,
    )

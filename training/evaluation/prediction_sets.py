"""The coverage of prediction sets on labelled images, by lesion or another unit."""

from collections.abc import Iterable, Sequence

import numpy as np
from torch import Tensor

from eulerlora.scores.prediction_sets import (
    ALWAYS_INCLUDED,
    PredictionSetCalibration,
    included_classes,
)
from training.data.images import LabelledImage
from training.data.units import Units
from training.evaluation.intervals import Bools, Proportion, proportion
from training.evaluation.report_schema import ClassCoverage, SetCoverage


def set_coverages(
    probabilities: Tensor,
    images: Sequence[LabelledImage],
    classes: Sequence[str],
    calibrations: Iterable[PredictionSetCalibration],
) -> list[SetCoverage]:
    """The coverage of the prediction sets of each calibration on at least one labelled image.

    A lesion, or another unit (`training.data.units`), is covered if the sets of all its images
    contain its class. `probabilities` are (n, classes) float64 of the n images, predicted with the
    options of the calibrations.
    """
    return [_coverage(probabilities, images, classes, fitted) for fitted in calibrations]


def _coverage(
    probabilities: Tensor,
    images: Sequence[LabelledImage],
    classes: Sequence[str],
    calibration: PredictionSetCalibration,
) -> SetCoverage:
    included = included_classes(probabilities, calibration.thresholds).numpy()
    sizes, units = included.sum(axis=1), Units.of(images)
    labels = units.labels[units.indices]  # (n,)
    covered = units.combine(included[np.arange(len(labels)), labels], np.logical_and)
    return SetCoverage(
        coverage=calibration.coverage,
        always_included=tuple(
            name
            for name, threshold in zip(classes, calibration.thresholds, strict=True)
            if threshold == ALWAYS_INCLUDED
        ),
        classes={
            classes[label]: ClassCoverage(
                units=_share(covered, units, units.labels == label),
                mean_size=float(sizes[labels == label].mean()),
            )
            for label in np.unique(labels).tolist()
        },
        mean_size=float(sizes.mean()),
    )


def _share(covered: Bools, units: Units, of_class: Bools) -> Proportion:
    share = proportion(covered[of_class], units.groups[of_class])
    assert share is not None
    return share

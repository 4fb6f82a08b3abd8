"""The coverage of prediction sets on labelled images, by lesion or another unit."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from eulerlora.model import EulerLoRA
from eulerlora.scores.prediction_sets import (
    ALWAYS_INCLUDED,
    PredictionSetCalibration,
    included_classes,
)
from eulerlora_contract.sampling import Options, applying
from training.data.images import LabelledImage
from training.data.units import Units
from training.evaluation.intervals import Bools, Proportion, proportion
from training.evaluation.report_schema import ClassCoverage, SetCoverage


def set_coverages(
    model: EulerLoRA,
    options: Options,
    probabilities: Tensor,
    images: Sequence[LabelledImage],
) -> list[SetCoverage]:
    """`coverage_by_class` for each coverage that the checkpoint has for these options."""
    return [
        coverage_by_class(probabilities, images, model.classes, calibration)
        for calibration in applying(model.config.prediction_sets, options)
    ]


def coverage_by_class(
    probabilities: Tensor,
    images: Sequence[LabelledImage],
    classes: Sequence[str],
    calibration: PredictionSetCalibration,
) -> SetCoverage:
    """The coverage of the prediction sets on at least one labelled image.

    A lesion, or another unit (`training.data.units`), is covered if the sets of all its images
    contain its class. `probabilities` are (n, classes) float64 of the n images, predicted with the
    options of the calibration.
    """
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

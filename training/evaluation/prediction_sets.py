"""The coverage of prediction sets on labelled images, by lesion."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from eulerlora.model import EulerLoRA
from eulerlora.scores.prediction_sets import (
    ALWAYS_INCLUDED,
    PredictionSetCalibration,
    included_classes,
    unit_scores,
)
from eulerlora_contract.sampling import Options
from training.data.images import LabelledImage
from training.evaluation.intervals import Proportion, proportion
from training.evaluation.report_schema import ClassCoverage, SetCoverage


@dataclass(frozen=True)
class Lesions:
    """The lesions of labelled images, which are the units of prediction sets.

    Attributes:
        indices: (n,) int64, the lesion of each image; one without a known lesion is one by itself.
    """

    indices: Tensor
    labels: Tensor  # (lesions,) int64, their class indices
    unit: Literal["lesion", "image"]  # "image" if no image has a known lesion

    @classmethod
    def of(cls, images: Sequence[LabelledImage]) -> "Lesions":
        """An image without a lesion is one by itself.

        A group, such as a patient, with images of several classes is a lesion of each of them.
        """
        keys = [(image.label, bool(image.cluster), image.cluster or image.name) for image in images]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return cls(
            indices=torch.tensor([numbers[key] for key in keys], dtype=torch.int64),
            labels=torch.tensor([label for label, *_ in numbers], dtype=torch.int64),
            unit="lesion" if any(image.cluster for image in images) else "image",
        )

    def counts(self, classes: int) -> tuple[int, ...]:
        return tuple(torch.bincount(self.labels, minlength=classes).tolist())


def set_coverages(
    model: EulerLoRA,
    options: Options,
    probabilities: Tensor,
    images: Sequence[LabelledImage],
) -> list[SetCoverage]:
    """`coverage_by_class` for each coverage that the checkpoint has for these options."""
    return [
        coverage_by_class(probabilities, images, model.classes, calibration)
        for calibration in model.config.fitted_for(model.config.prediction_sets, options)
    ]


def coverage_by_class(
    probabilities: Tensor,
    images: Sequence[LabelledImage],
    classes: Sequence[str],
    calibration: PredictionSetCalibration,
) -> SetCoverage:
    """The coverage of the prediction sets on at least one labelled image.

    A lesion is covered if the sets of all its images contain its class. `probabilities` are
    (n, classes) float64 of the n images, predicted with the options of the calibration.
    """
    included = included_classes(probabilities, calibration.thresholds)
    sizes = included.sum(dim=1).double()
    lesions = Lesions.of(images)
    labels = lesions.labels[lesions.indices]  # (n,)
    missed = ~included.gather(1, labels.unsqueeze(1)).squeeze(1)
    covered = unit_scores(missed.double(), lesions.indices) == 0  # (lesions,)
    return SetCoverage(
        coverage=calibration.coverage,
        always_included=tuple(
            name
            for name, threshold in zip(classes, calibration.thresholds, strict=True)
            if threshold == ALWAYS_INCLUDED
        ),
        classes={
            classes[label]: ClassCoverage(
                lesions=_share(covered[lesions.labels == label]),
                mean_size=float(sizes[labels == label].mean()),
            )
            for label in labels.unique().tolist()
        },
        mean_size=float(sizes.mean()),
    )


def _share(hits: Tensor) -> Proportion:
    share = proportion(hits.numpy(), np.arange(len(hits)))
    assert share is not None
    return share

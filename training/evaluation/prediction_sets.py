"""Prediction sets: thresholds from calibration images, and coverage on labelled images."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from eulerlora.errors import DataError, SettingsError
from eulerlora.model import EulerLoRA
from eulerlora.prediction.answer import RunOptions, calibrations_for
from eulerlora.scores.prediction_sets import (
    ALWAYS_INCLUDED,
    PredictionSetCalibration,
    check_coverage,
    class_threshold,
    included_classes,
    lac_scores,
    min_units,
    unit_scores,
)
from eulerlora_client.contract.sampling import Precision, Sampler
from training.data.images import LabelledImage
from training.evaluation.inference import SamplingOptions
from training.evaluation.intervals import Proportion, proportion
from training.evaluation.report_schema import ClassCoverage, SetCoverage


@dataclass(frozen=True)
class CoverageSettings:
    """The coverages of the prediction sets to calibrate, none by default.

    always_include_rare: a class with too few lesions for a coverage is in every set; otherwise it
    is an error. Raises SettingsError for a coverage outside (0, 1) or listed twice.
    """

    coverages: tuple[float, ...] = ()
    always_include_rare: bool = False

    def __post_init__(self) -> None:
        for coverage in self.coverages:
            check_coverage(coverage)
        if len(set(self.coverages)) < len(self.coverages):
            listed = ", ".join(f"{coverage:g}" for coverage in self.coverages)
            raise SettingsError(f"coverage: expected different values, got {listed}")


NO_COVERAGE = CoverageSettings()
"""No prediction sets."""


@dataclass(frozen=True)
class Lesions:
    """The lesions of labelled images, which are the units of prediction sets.

    indices: (n,) int64, the lesion of each image; one without a known lesion is one by itself.
    labels: (lesions,) int64, their class indices. unit: "image" if no image has a known lesion.
    """

    indices: Tensor
    labels: Tensor
    unit: Literal["lesion", "image"]

    @classmethod
    def of(cls, images: Sequence[LabelledImage]) -> "Lesions":
        """Returns the lesions of at least one image; a lesion has one class."""
        keys = [_lesion_key(image) for image in images]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return cls(
            indices=torch.tensor([numbers[key] for key in keys]),
            labels=torch.tensor([label for label, *_ in numbers]),
            unit="lesion" if any(image.cluster for image in images) else "image",
        )

    def counts(self, classes: int) -> tuple[int, ...]:
        """Returns the number of lesions of each class."""
        return tuple(torch.bincount(self.labels, minlength=classes).tolist())


def check_lesions(
    images: Sequence[LabelledImage], classes: Sequence[str], settings: CoverageSettings
) -> None:
    """Raises DataError if a class has too few lesions for one of the coverages.

    With `always_include_rare`, only if this is true of every class.
    """
    if not settings.coverages:
        return
    lesions = Lesions.of(images)
    counts = dict(zip(classes, lesions.counts(len(classes)), strict=True))
    highest = max(settings.coverages)
    needed = min_units(highest)
    rare = {name: count for name, count in counts.items() if count < needed}
    if not rare or (settings.always_include_rare and len(rare) < len(classes)):
        return
    listed = ", ".join(f"{count} of {name}" for name, count in rare.items())
    advice = "" if len(rare) == len(classes) else "; --always-include-rare puts them in every set"
    raise DataError(
        f"coverage {highest:g}: expected at least {needed} calibration {lesions.unit}s of each "
        f"class, got {listed}{advice}"
    )


def fit_prediction_sets(
    probabilities: Mapping[SamplingOptions, Tensor],
    images: Sequence[LabelledImage],
    classes: Sequence[str],
    settings: CoverageSettings,
    sampler: Sampler,
    precision: Precision,
    data: str,
) -> tuple[PredictionSetCalibration, ...]:
    """Returns the thresholds for each of the coverages and of the sampling options.

    probabilities: (n, classes) float64 of the calibration images, by sampling options. sampler,
    precision: those of the predictions. data: the name of the images. Raises as `check_lesions`.
    """
    check_lesions(images, classes, settings)
    if not settings.coverages:
        return ()
    lesions, digest = Lesions.of(images), data_sha256(images, classes)
    return tuple(
        PredictionSetCalibration(
            coverage=coverage,
            mode=options.mode,
            samples=options.samples,
            sampler=sampler,
            precision=precision,
            thresholds=_thresholds(predicted, images, lesions, coverage),
            unit=lesions.unit,
            units=lesions.counts(len(classes)),
            data=data,
            data_sha256=digest,
        )
        for options, predicted in probabilities.items()
        for coverage in settings.coverages
    )


def set_coverages(
    model: EulerLoRA,
    options: SamplingOptions,
    sampler: Sampler,
    probabilities: Tensor,
    images: Sequence[LabelledImage],
) -> list[SetCoverage]:
    """Returns `coverage_by_class` for each coverage that the checkpoint has for these options."""
    views = options.views or model.config.default_views(options.mode)
    run = RunOptions(options.mode, options.samples, sampler, model.precision, views)
    return [
        coverage_by_class(probabilities, images, model.classes, calibration)
        for calibration in calibrations_for(model.config, run)
    ]


def coverage_by_class(
    probabilities: Tensor,
    images: Sequence[LabelledImage],
    classes: Sequence[str],
    calibration: PredictionSetCalibration,
) -> SetCoverage:
    """Returns the coverage of the prediction sets on at least one labelled image.

    probabilities: (n, classes) float64, predicted with the options of the calibration. classes: in
    their order.
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
        empty=float((sizes == 0).double().mean()),
        single=float((sizes == 1).double().mean()),
    )


def data_sha256(images: Sequence[LabelledImage], classes: Sequence[str]) -> str:
    """Returns the digest of the images' names, class names and lesions, in any order."""
    rows = sorted((image.name, classes[image.label], image.cluster or "") for image in images)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _thresholds(
    probabilities: Tensor, images: Sequence[LabelledImage], lesions: Lesions, coverage: float
) -> tuple[float, ...]:
    """Returns the threshold of each class; ALWAYS_INCLUDED for too few lesions."""
    labels = torch.tensor([image.label for image in images])
    scores = unit_scores(lac_scores(probabilities, labels), lesions.indices)
    thresholds = (
        class_threshold(scores[lesions.labels == label], coverage)
        for label in range(probabilities.shape[1])
    )
    return tuple(ALWAYS_INCLUDED if found is None else found for found in thresholds)


def _share(hits: Tensor) -> Proportion:
    """hits: (lesions,) bool, at least one."""
    share = proportion(hits.numpy(), np.arange(len(hits)))
    assert share is not None
    return share


def _lesion_key(image: LabelledImage) -> tuple[int, str, str]:
    """Returns the label and an identifier of the lesion; a lesion and an image never coincide."""
    return (
        (image.label, "lesion", image.cluster)
        if image.cluster
        else (image.label, "image", image.name)
    )

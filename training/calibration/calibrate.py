"""Calibration of a checkpoint: feature statistics, thresholds and prediction sets."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eulerlora.checkpoint.config import CheckpointConfig, FeatureConfig
from eulerlora.checkpoint.files import (
    CALIBRATION_IMAGES,
    CONFIG_FILE,
    Checkpoint,
    check_new_checkpoint,
    copy_checkpoint,
    load_checkpoint,
    read_training_images,
    stored_card,
)
from eulerlora.checkpoint.weights import tensors_sha256
from eulerlora.model import EulerLoRA
from eulerlora.precision import missing_bfloat16
from eulerlora.scores.ood_scores import (
    SHRINKAGE,
    CrossFittedDistance,
    FeatureDistance,
    FeatureStatistics,
    fit_feature_statistics,
)
from eulerlora.settings import Provenance, RuntimeSettings
from eulerlora_contract.errors import DataError
from eulerlora_contract.output_files import new_folder
from eulerlora_contract.sampling import (
    AUTO,
    MODES,
    Auto,
    PrecisionChoice,
    Sampler,
    Views,
)
from training.calibration.thresholds import (
    NO_COVERAGE,
    TEMPERATURE_FOLDS,
    CalibrationOutputs,
    CoverageSettings,
    check_units,
    group_folds,
    precision_changes,
    with_prediction_sets,
    with_thresholds,
)
from training.data.copies import image_digests
from training.data.images import ImageParts, LabelledImage, evenly_spaced
from training.data.units import Units
from training.evaluation.inference import predict_all
from training.recipe.schema import CALIBRATED_SAMPLES

_MAX_FEATURE_IMAGES = 10_000
"""Training images, evenly spaced, from which the feature statistics are computed, at most."""
_FEATURE_FOLDS = 10
"""Of the calibration images that the feature statistics are fitted to without a training part."""


@dataclass(frozen=True)
class Calibration:
    """What `calibrate` fits.

    Attributes:
        config: Of the calibrated checkpoint.
        statistics: Of the features, whose digest is in the config.
        images: Digests of the images of the fit, as in `read_training_images`.
    """

    config: CheckpointConfig
    statistics: FeatureStatistics
    images: Mapping[str, Tensor]


def calibrate_checkpoint(
    source: Path, out: Path, images: ImageParts, device: torch.device, **options: Any
) -> CheckpointConfig:
    """Writes a new checkpoint to `out`: that in `source` with another calibration.

    `options` are those of `calibrate`. The new folder appears complete or not at all.

    Raises:
        CheckpointError: If `out` is not empty, before any work.
        OutputPathError: If `out` is in `source`, before any work.
        DataError: As `calibrate`.
        StorageError: For a full or failing disk.
    """
    check_new_checkpoint(out, source)
    fitted = calibrate(load_checkpoint(source), images, device, **options)
    known = {**read_training_images(source), **fitted.images}
    card = stored_card(source)
    with new_folder(out, last=CONFIG_FILE) as partial:
        return copy_checkpoint(partial, source, fitted.config, card, known, fitted.statistics)


def calibrate(
    checkpoint: Checkpoint,
    images: ImageParts,
    device: torch.device,
    samples: Sequence[int | Auto] = CALIBRATED_SAMPLES,
    sampler: Sampler | None = None,
    coverage: CoverageSettings = NO_COVERAGE,
    precision: PrecisionChoice = "float32",
    views: Views | None = None,
    temperature: bool = True,
) -> Calibration:
    """Calibrates a checkpoint, whose network is on the CPU again afterwards.

    Fits, in this order: the feature statistics, to the training part; the temperature of each mode,
    if `temperature`, which is 1 otherwise; OOD thresholds and decision margins; with a
    coverage, prediction sets. All but the statistics are fitted to the calibration part, or (the
    temperature excepted) to the test part of a split without one; the config names it. Without a
    training part, the statistics are fitted to the calibration part too, and its distances are
    cross-fitted. Nothing of an earlier calibration remains.

    `samples` are those of `stoch`; `det` is calibrated too. `auto` needs margins, which need enough
    images (`eulerlora.sampling.adaptive`), and has no sets. `sampler` and `views` replace those of
    the checkpoint, unless None. Precision float32 has the statistics, margins and temperatures;
    bfloat16 adds thresholds and sets of its own and the comparison by which `precision=auto`
    decides; `auto` is bfloat16 where it is fast.

    Raises:
        DataError: If a class has too few units for the coverage, or there are not two groups to
            cross-fit, before any work.
    """
    uncalibrated = checkpoint.config.model_copy(
        update={
            "provenance": _without_site_results(checkpoint.config.provenance),
            "sampler": sampler or checkpoint.config.sampler,
            "views": views or checkpoint.config.views,
            "temperature": 1.0,
            "stoch_temperature": None,
            "thresholds": (),
            "margins": None,
            "features": None,
            "prediction_sets": (),
            "bfloat16": (),
        }
    )
    part = images.held_out
    held_out, data = images.parts[part], f"{images.name}, {part} part"
    check_units(Units.of(held_out), uncalibrated.class_names, coverage)
    if "train" not in images.parts and len(np.unique(Units.of(held_out).groups)) < 2:
        raise DataError(f"{images.name}: expected images of two groups or more, got one group")
    source = replace(checkpoint, config=uncalibrated)
    exact = EulerLoRA(source, device)
    if "train" in images.parts:
        train = evenly_spaced(images.parts["train"], _MAX_FEATURE_IMAGES)
        distance, of_features = _feature_distance(exact, train), f"{images.name}, train part"
        outputs = CalibrationOutputs.of(exact, held_out, data, samples)
    else:
        outputs = CalibrationOutputs.of(exact, held_out, data, samples)
        distance, train, of_features = _cross_fitted(outputs, len(exact.classes)), held_out, data
    statistics = distance.statistics
    features = FeatureConfig(
        sha256=tensors_sha256(statistics.tensors),
        shrinkage=SHRINKAGE,
        components=len(statistics.means),
        images=len(train),
        data=of_features,
    )
    fitted = uncalibrated.model_copy(update={"features": features})
    if temperature and has_temperature(images):
        # that of stoch for the default samples; more samples are a little less confident
        det, stoch = (outputs.temperature(fitted.options(mode)).temperature for mode in MODES)
        fitted = fitted.model_copy(update={"temperature": det, "stoch_temperature": stoch})
    outputs = outputs.at(fitted.temperatures)
    fitted = with_thresholds(fitted, outputs, distance, samples)
    fitted = with_prediction_sets(fitted, outputs, samples, coverage)
    if _compares_bfloat16(precision, device):
        copied = replace(source, network=copy.deepcopy(source.network))
        model = EulerLoRA(copied, device, RuntimeSettings(precision="bfloat16"))
        rounded = CalibrationOutputs.of(model, held_out, data, samples).at(fitted.temperatures)
        fitted = with_thresholds(fitted, rounded, distance, samples)
        fitted = with_prediction_sets(fitted, rounded, samples, coverage)
        changes = precision_changes(fitted, outputs, rounded, distance)
        fitted = fitted.model_copy(update={"bfloat16": changes})
    checkpoint.network.cpu()
    return Calibration(fitted, statistics, {CALIBRATION_IMAGES: image_digests(held_out).unique()})


def _without_site_results(provenance: Provenance) -> Provenance:
    """Without what a site's fit gave, except that it refitted the heads, which stay."""
    others = {key: value for key, value in provenance.items() if key != "site"}
    site = provenance.get("site", {})
    return others | {"site": site | {"results": {}}} if site.get("heads") else others


def _compares_bfloat16(precision: PrecisionChoice, device: torch.device) -> bool:
    """Also where it is not faster: the checkpoint may be served on another machine."""
    return precision == "bfloat16" or (precision == AUTO and missing_bfloat16(device) is None)


def has_temperature(images: ImageParts) -> bool:
    """True if the calibration part has TEMPERATURE_FOLDS units of each class and groups, or more.

    Without some of the classes, a temperature would be too low. None is fitted to a test part,
    whose NLL would be too good.
    """
    if "calibration" not in images.parts:
        return False
    units = Units.of(images.parts["calibration"])
    fewest = min(*units.counts(len(images.classes)), len(np.unique(units.groups)))
    return fewest >= TEMPERATURE_FOLDS


def _feature_distance(model: EulerLoRA, images: Sequence[LabelledImage]) -> FeatureDistance:
    (trajectories,) = predict_all(model, images, [model.options("det")], "features")
    labels = torch.tensor([image.label for image in images])
    features = trajectories.features.mean(dim=(1, 2))
    return FeatureDistance(fit_feature_statistics(features, labels, len(model.classes)))


def _cross_fitted(outputs: CalibrationOutputs, classes: int) -> CrossFittedDistance:
    groups = outputs.units.image_groups
    folds = torch.zeros(len(groups), dtype=torch.int64)
    count = min(_FEATURE_FOLDS, len(np.unique(groups)))
    for fold, (_, inside) in enumerate(group_folds(groups, count)):
        folds[torch.from_numpy(inside)] = fold
    return CrossFittedDistance(
        outputs.det.features.mean(dim=(1, 2)), outputs.labels, classes, folds
    )

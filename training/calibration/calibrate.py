"""Calibration of a checkpoint: feature statistics, thresholds and prediction sets."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from eulerlora.checkpoint.config import CheckpointConfig, FeatureConfig
from eulerlora.checkpoint.files import (
    CALIBRATION_IMAGES,
    load_checkpoint,
    read_training_images,
    write_config,
    write_feature_statistics,
    write_known_answer,
    write_training_images,
)
from eulerlora.checkpoint.weights import tensors_sha256
from eulerlora.model import EulerLoRA
from eulerlora.precision import missing_bfloat16
from eulerlora.scores.ood_scores import (
    SHRINKAGE,
    FeatureDistance,
    FeatureStatistics,
    fit_feature_statistics,
)
from eulerlora.settings import Provenance, RuntimeSettings
from eulerlora_contract.output_files import changed_folder
from eulerlora_contract.sampling import (
    AUTO,
    DEFAULT_SAMPLES,
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
    precision_changes,
    with_prediction_sets,
    with_thresholds,
)
from training.data.copies import image_digests
from training.data.images import ImageParts, evenly_spaced
from training.data.units import Units
from training.evaluation.inference import predict_all
from training.recipe.schema import CALIBRATED_SAMPLES

_MAX_FEATURE_IMAGES = 10_000
"""Training images, evenly spaced, from which the feature statistics are computed, at most."""


def calibrate(
    folder: Path,
    images: ImageParts,
    device: torch.device,
    samples: Sequence[int | Auto] = CALIBRATED_SAMPLES,
    sampler: Sampler | None = None,
    coverage: CoverageSettings = NO_COVERAGE,
    precision: PrecisionChoice = "float32",
    views: Views | None = None,
    temperature: bool = True,
) -> CheckpointConfig:
    """Calibrates the checkpoint in a folder, whose files change.

    Fits, in this order: the feature statistics, to the training part; the temperature of each mode,
    if `temperature`, which is 1 otherwise; OOD thresholds and decision margins; with a
    coverage, prediction sets. All but the statistics are fitted to the calibration part, or (the
    temperature excepted) to the test part of a split without one; the config names it. Replaces
    `ood.safetensors`, the known answer and `config.json`; nothing of an earlier calibration
    remains.

    `samples` are those of `stoch`; `det` is calibrated too. `auto` needs margins, which need enough
    images (`eulerlora.sampling.adaptive`), and has no sets. `sampler` and `views` replace those of
    the checkpoint, unless None. Precision float32 has the statistics, margins and temperatures;
    bfloat16 adds thresholds and sets of its own and the comparison by which `precision=auto`
    decides; `auto` is bfloat16 where it is fast.

    Raises:
        DataError: If a class has too few units for the coverage, before any work.
    """
    checkpoint = load_checkpoint(folder)
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
    source = replace(checkpoint, config=uncalibrated)
    exact = EulerLoRA(source, device)
    statistics, features = _compute_feature_statistics(exact, images)
    fitted = uncalibrated.model_copy(update={"features": features})
    distance = FeatureDistance(statistics)
    outputs = CalibrationOutputs.of(exact, held_out, data, samples)
    if temperature and has_temperature(images):
        # that of stoch for DEFAULT_SAMPLES; more samples are a little less confident
        det, stoch = (outputs.temperature(mode, DEFAULT_SAMPLES).temperature for mode in MODES)
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
    digests = {
        **read_training_images(folder),
        CALIBRATION_IMAGES: image_digests(held_out).unique(),
    }
    with changed_folder(folder) as partial:
        stored = write_training_images(partial, digests)
        fitted = fitted.model_copy(update={"training_images_sha256": stored})
        write_feature_statistics(partial, statistics)
        write_known_answer(partial, checkpoint.network.cpu(), fitted)
        write_config(partial, fitted)
    return fitted


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


def _compute_feature_statistics(
    model: EulerLoRA, images: ImageParts
) -> tuple[FeatureStatistics, FeatureConfig]:
    train = evenly_spaced(images.parts["train"], _MAX_FEATURE_IMAGES)
    (trajectories,) = predict_all(model, train, [model.options("det")], "features")
    labels = torch.tensor([image.label for image in train])
    features = trajectories.features.mean(dim=(1, 2))
    statistics = fit_feature_statistics(features, labels, len(model.classes))
    return statistics, FeatureConfig(
        sha256=tensors_sha256(statistics.tensors),
        shrinkage=SHRINKAGE,
        components=len(statistics.means),
        images=len(train),
        data=f"{images.name}, train part",
    )

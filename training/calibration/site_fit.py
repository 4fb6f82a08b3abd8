"""The fit of a checkpoint to a site's pictures: temperature, feature means, OOD thresholds, sets.

What a site has too few lesions for stays as it was, except for prediction sets of another
temperature, which are removed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.model_selection import GroupKFold
from torch import Tensor

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import Checkpoint
from eulerlora.checkpoint.weights import tensors_sha256
from eulerlora.model import EulerLoRA
from eulerlora.scores.ood_scores import FeatureDistance, FeatureStatistics
from eulerlora.settings import RuntimeSettings
from eulerlora_client.contract.sampling import DEFAULT_SAMPLES, MODES, PrecisionChoice
from training.calibration.policy import PolicyFile
from training.calibration.report import FEATURES, OOD, TEMPERATURE, FittedPart, sets_part
from training.calibration.thresholds import (
    KEPT_SHARE,
    CalibrationOutputs,
    CoverageSettings,
    upper_quantile,
    with_prediction_sets,
    with_thresholds,
)
from training.data.images import LabelledImage
from training.data.splits import SPLIT_SEED
from training.evaluation.inference import ModelOutputs, SamplingOptions
from training.evaluation.intervals import Ints, cluster_indices
from training.recipe.schema import SAMPLES

FITTED = "fitted"
FEATURE_FOLDS = 2


@dataclass(frozen=True)
class SiteSettings:
    """What to fit.

    sensitivity: required of the urgent threshold. coverage: of the prediction sets. options: of the
    predictions that the policy applies to, whose NLL the temperature lowers. policy: to start from.
    hold_out: share of the lesions to measure on; None fits on all. precision: of all predictions,
    which the new checkpoint records.
    """

    sensitivity: float
    coverage: CoverageSettings
    options: SamplingOptions
    policy: PolicyFile
    hold_out: float | None = None
    precision: PrecisionChoice = "float32"


Parts = Mapping[str, FittedPart]
"""The parts of a calibration by name, with the lesions that they need."""


@dataclass(frozen=True)
class SiteFit:
    """A config and feature distance with what was fitted so far.

    outputs: of the pictures, at the config's temperature and with features relative to the
    distance's means, of which those of the same group are no part. results: by part, in words.
    """

    config: CheckpointConfig
    distance: FeatureDistance | None
    outputs: CalibrationOutputs
    results: Mapping[str, str]

    @property
    def groups(self) -> Ints:
        """(n,) index of each picture's group, such as a patient; one without is one by itself."""
        return cluster_indices([image.cluster or image.name for image in self.outputs.images])

    def with_result(self, part: str, result: str) -> "SiteFit":
        """Returns the fit with the result of a part."""
        return replace(self, results={**self.results, part: result})


def fit_site(
    checkpoint: Checkpoint,
    images: Sequence[LabelledImage],
    data: str,
    settings: SiteSettings,
    parts: Parts,
    device: torch.device,
    runtime: RuntimeSettings,
) -> SiteFit:
    """Fits the parts that have enough lesions to images, of which `data` is the name.

    The pictures are predicted at temperature 1.
    """
    update = {
        "temperature": 1.0,
        "stoch_temperature": None,
        "thresholds": (),
        "prediction_sets": (),
    }
    source = replace(checkpoint, config=checkpoint.config.model_copy(update=update))
    outputs = CalibrationOutputs.of(EulerLoRA(source, device, runtime), images, data, SAMPLES)
    fit = SiteFit(checkpoint.config, checkpoint.feature_distance, outputs, {})
    fit = _with_temperature(fit, settings.options, parts)
    fit = _with_feature_means(fit, parts)
    if parts[OOD].met:
        config = fit.config.model_copy(update={"thresholds": (), "margins": None})
        config = with_thresholds(config, fit.outputs, fit.distance, SAMPLES)
        tolerance = config.thresholds[0].tolerance
        assert tolerance is not None
        fit = replace(fit, config=config).with_result(OOD, f"keep {tolerance.summary}")
    return _with_prediction_sets(fit, settings.coverage, parts)


def _with_temperature(fit: SiteFit, options: SamplingOptions, parts: Parts) -> SiteFit:
    """Returns the fit at its new temperature; fit: with outputs at temperature 1.

    A checkpoint that samples views has a temperature for each mode.
    """
    config = fit.config
    temperatures = dict(config.temperatures)
    if parts[TEMPERATURE].met:
        samples = options.samples if options.mode == "stoch" else DEFAULT_SAMPLES
        fits = {
            mode: fit.outputs.temperature(mode, samples, fit.groups)
            for mode in (MODES if config.views > 1 else (options.mode,))
        }
        fallback = fits[options.mode].temperature
        temperatures = {
            mode: fits[mode].temperature if mode in fits else fallback for mode in MODES
        }
        fit = fit.with_result(TEMPERATURE, "; ".join(scaling.summary for scaling in fits.values()))
    det, stoch = temperatures["det"], temperatures["stoch"]
    update: dict[str, object] = {
        "temperature": det,
        "stoch_temperature": None if stoch == det else stoch,
    }
    if temperatures != config.temperatures:
        update |= {"prediction_sets": (), "margins": None}
    config = config.model_copy(update=update)
    return replace(fit, config=config, outputs=fit.outputs.at(temperatures))


def _with_feature_means(fit: SiteFit, parts: Parts) -> SiteFit:
    described, distance = fit.config.features, fit.distance
    if not parts[FEATURES].met:
        return fit
    if described is None or distance is None or described.components != len(fit.config.classes):
        return fit.with_result(FEATURES, "not fitted: the checkpoint has no mean for each class")
    features = fit.outputs.det.features.mean(dim=(1, 2))
    offset = fit_offset(distance, features, fit.outputs.labels, fit.groups)
    fit = fit.with_result(FEATURES, offset.summary)
    if not offset.helps:
        return fit
    statistics = moved(distance.statistics, offset.offset)
    changes = {
        "sha256": tensors_sha256(statistics.tensors),
        "data": f"{described.data}, means moved to {fit.outputs.data}",
    }
    config = fit.config.model_copy(update={"features": described.model_copy(update=changes)})
    by_picture = offset.by_picture - offset.offset  # relative to the moved means
    outputs = replace(
        fit.outputs,
        det=_less(fit.outputs.det, by_picture),
        stoch=_less(fit.outputs.stoch, by_picture),
    )
    return replace(fit, config=config, distance=FeatureDistance(statistics), outputs=outputs)


def _with_prediction_sets(fit: SiteFit, coverage: CoverageSettings, parts: Parts) -> SiteFit:
    """Returns the fit with new sets for the coverages that have enough lesions."""
    met = tuple(stated for stated in coverage.coverages if parts[sets_part(stated)].met)
    kept = tuple(sets for sets in fit.config.prediction_sets if sets.coverage not in met)
    config = fit.config.model_copy(update={"prediction_sets": kept})
    config = with_prediction_sets(config, fit.outputs, SAMPLES, replace(coverage, coverages=met))
    fit = replace(fit, config=config)
    for stated in met:
        fit = fit.with_result(sets_part(stated), FITTED)
    return fit


def _less(outputs: ModelOutputs, offsets: Tensor) -> ModelOutputs:
    """Returns the outputs with (n, d) `offsets` subtracted from all features of each picture."""
    return replace(outputs, features=outputs.features - offsets[:, None, None, :])


@dataclass(frozen=True)
class SiteOffset:
    """The difference between a site's features and the class means.

    Another camera or lighting moves the features of all pictures alike. If the means follow, the
    distances of the site's pictures stay small, and so does their threshold; with unmoved means the
    threshold alone would rise, until unfamiliar pictures pass as well. Distances to moved means are
    those of features that are moved back by the same offset.

    offset: (d,), of all pictures. by_picture: (n, d), from the pictures of other groups, by which
    the threshold of new pictures is set. threshold_before, threshold_after: of the distances
    without and with `by_picture`.
    """

    offset: Tensor
    by_picture: Tensor
    threshold_before: float
    threshold_after: float

    @property
    def helps(self) -> bool:
        """True if the moved means keep the same share of pictures with a lower threshold."""
        return self.threshold_after < self.threshold_before

    @property
    def summary(self) -> str:
        """The result in words."""
        action = "moved" if self.helps else "not moved"
        return (
            f"{action}: distance threshold {self.threshold_after:.1f} with them, "
            f"{self.threshold_before:.1f} without"
        )


def fit_offset(
    distance: FeatureDistance, features: Tensor, labels: Tensor, groups: Ints
) -> SiteOffset:
    """Returns the offset of a site's pictures, with cross-fitted offsets.

    distance: with one mean for each class. features: (n, d). labels: (n,) class indices. groups:
    (n,), at least two; they stay together in the two folds.
    """
    differences = features - distance.statistics.means[labels]
    by_picture = torch.empty_like(differences)
    folds = GroupKFold(FEATURE_FOLDS, shuffle=True, random_state=SPLIT_SEED)
    for rest, held_out in folds.split(groups, groups=groups):
        by_picture[held_out] = _mean(differences[rest], groups[rest])
    return SiteOffset(
        offset=_mean(differences, groups),
        by_picture=by_picture,
        threshold_before=upper_quantile(distance(features), KEPT_SHARE),
        threshold_after=upper_quantile(distance(features - by_picture), KEPT_SHARE),
    )


def moved(statistics: FeatureStatistics, offset: Tensor) -> FeatureStatistics:
    """Returns the statistics with all means moved by (d,) `offset`."""
    return replace(statistics, means=statistics.means + offset)


def _mean(differences: Tensor, groups: Ints) -> Tensor:
    """Returns (d,) the mean over groups of the means of their pictures."""
    indices = torch.from_numpy(np.unique(groups, return_inverse=True)[1])
    sizes = indices.bincount()
    weights = 1 / (sizes[indices] * len(sizes))
    return weights.to(differences) @ differences

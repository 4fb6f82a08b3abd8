"""The fit of temperature, feature means, OOD thresholds and prediction sets to a site's pictures.

What a site has too few lesions for stays as it was, except for prediction sets of another
temperature, which are removed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import Checkpoint, revision_of
from eulerlora.checkpoint.safetensor_files import tensors_sha256
from eulerlora.model import EulerLoRA
from eulerlora.scores.feature_distance import FeatureDistance
from eulerlora.scores.prediction_sets import PredictionSetCalibration, threshold_rank
from eulerlora.settings import RuntimeSettings
from training.calibration.outputs import CalibrationOutputs
from training.calibration.thresholds import compute_margins, compute_thresholds
from training.data.images import LabelledImage
from training.evaluation.inference import ModelOutputs, SamplingOptions
from training.evaluation.prediction_sets import CoverageSettings, fit_prediction_sets
from training.recipe.schema import SAMPLES
from training.site.features import fit_offset, moved
from training.site.hold_out import group_indices
from training.site.requirements import FEATURES, OOD, TEMPERATURE, Needs, Requirement, sets_part
from training.site.temperature import at_temperature, fit_temperature

FITTED = "fitted"


@dataclass(frozen=True)
class SiteImages:
    """The pictures of a fit and what it needs. data: name of the pictures in the checkpoint.

    parts: the requirements by part. options: of the predictions whose NLL the temperature lowers.
    """

    images: Sequence[LabelledImage]
    data: str
    needs: Needs
    parts: Mapping[str, Requirement]
    options: SamplingOptions

    @property
    def labels(self) -> Tensor:
        """(n,) class indices."""
        return torch.tensor([image.label for image in self.images])

    @property
    def kept(self) -> float:
        """The share of the n pictures whose rank bounds `needs.kept` of new pictures."""
        # Half a picture less, so that rounding cannot raise the rank.
        return (threshold_rank(len(self.images), self.needs.kept) - 0.5) / len(self.images)


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

    def with_result(self, part: str, result: str) -> "SiteFit":
        """Returns the fit with the result of a part."""
        return replace(self, results={**self.results, part: result})


def fit_site(
    checkpoint: Checkpoint, site: SiteImages, device: torch.device, runtime: RuntimeSettings
) -> SiteFit:
    """Fits the parts whose requirement is met."""
    return fit_outputs(checkpoint, site_outputs(checkpoint, site.images, device, runtime), site)


def site_outputs(
    checkpoint: Checkpoint,
    images: Sequence[LabelledImage],
    device: torch.device,
    runtime: RuntimeSettings,
) -> CalibrationOutputs:
    """Returns the outputs of pictures at temperature 1.

    The seeds come from a revision without thresholds, so a second fit gives the same ones.
    """
    update = {"temperature": 1.0, "thresholds": (), "prediction_sets": ()}
    config = checkpoint.config.model_copy(update=update)
    source = replace(checkpoint, config=config, revision=revision_of(config))
    model = EulerLoRA(source, device, runtime)
    return CalibrationOutputs.of(model, images, SAMPLES)


def fit_outputs(checkpoint: Checkpoint, outputs: CalibrationOutputs, site: SiteImages) -> SiteFit:
    """Fits the parts whose requirement is met; outputs: of `site_outputs`."""
    source = SiteFit(checkpoint.config, checkpoint.feature_distance, outputs, {})
    fit = _with_temperature(source, site)
    for step in (_with_feature_means, _with_thresholds, _with_prediction_sets):
        fit = step(fit, site)
    return fit


def _with_temperature(fit: SiteFit, site: SiteImages) -> SiteFit:
    """Returns the fit at its new temperature; fit: with outputs at temperature 1."""
    temperature = fit.config.temperature
    if site.parts[TEMPERATURE].met:
        own = fit.outputs.det if site.options.mode == "det" else fit.outputs.stoch
        trajectories = own.log_probabilities[:, :, : site.options.samples].flatten(1, 2)
        scaling = fit_temperature(trajectories, site.labels, group_indices(site.images))
        temperature = scaling.temperature
        fit = fit.with_result(TEMPERATURE, scaling.summary)
    sets = fit.config.prediction_sets if temperature == fit.config.temperature else ()
    margins = fit.config.margins if temperature == fit.config.temperature else None
    config = fit.config.model_copy(
        update={"temperature": temperature, "prediction_sets": sets, "margins": margins}
    )
    outputs = replace(
        fit.outputs,
        det=outputs_at(fit.outputs.det, temperature),
        stoch=outputs_at(fit.outputs.stoch, temperature),
    )
    return replace(fit, config=config, outputs=outputs)


def _with_feature_means(fit: SiteFit, site: SiteImages) -> SiteFit:
    described, distance = fit.config.features, fit.distance
    if not site.parts[FEATURES].met:
        return fit
    if described is None or distance is None or described.components != len(fit.config.classes):
        return fit.with_result(FEATURES, "not fitted: the checkpoint has no mean for each class")
    features = fit.outputs.det.features.mean(dim=(1, 2))
    groups = group_indices(site.images)
    offset = fit_offset(distance, features, site.labels, groups, site.kept)
    fit = fit.with_result(FEATURES, offset.summary)
    if not offset.helps:
        return fit
    statistics = moved(distance.statistics, offset.offset)
    changes = {
        "sha256": tensors_sha256(statistics.tensors),
        "data": f"{described.data}, means moved to {site.data}",
    }
    config = fit.config.model_copy(update={"features": described.model_copy(update=changes)})
    by_picture = offset.by_picture - offset.offset  # relative to the moved means
    outputs = replace(
        fit.outputs,
        det=_less(fit.outputs.det, by_picture),
        stoch=_less(fit.outputs.stoch, by_picture),
    )
    return replace(fit, config=config, distance=FeatureDistance(statistics), outputs=outputs)


def _with_thresholds(fit: SiteFit, site: SiteImages) -> SiteFit:
    if not site.parts[OOD].met:
        return fit
    source = (fit.outputs, site.data, fit.distance, SAMPLES, site.kept)
    margins = compute_margins(*source)
    thresholds = compute_thresholds(*source, margins=margins)
    config = fit.config.model_copy(update={"thresholds": thresholds, "margins": margins})
    return replace(fit, config=config).with_result(OOD, FITTED)


def _with_prediction_sets(fit: SiteFit, site: SiteImages) -> SiteFit:
    config = fit.config
    fitted: list[PredictionSetCalibration] = []
    for coverage in site.needs.coverages:
        if site.parts[sets_part(coverage)].met:
            fitted += fit_prediction_sets(
                fit.outputs.probabilities(SAMPLES),
                site.images,
                [label.name for label in config.classes],
                CoverageSettings((coverage,), site.needs.always_include_rare),
                config.sampler,
                fit.outputs.precision,
                site.data,
            )
            fit = fit.with_result(sets_part(coverage), FITTED)
    replaced = {sets.coverage for sets in fitted}
    kept = [sets for sets in config.prediction_sets if sets.coverage not in replaced]
    update = {"prediction_sets": (*fitted, *kept)}
    return replace(fit, config=config.model_copy(update=update))


def outputs_at(outputs: ModelOutputs, temperature: float) -> ModelOutputs:
    """Returns the outputs of the logits divided by `temperature`; outputs: at temperature 1."""
    logits = outputs.log_probabilities + outputs.log_partition.unsqueeze(-1)
    return ModelOutputs(
        at_temperature(outputs.log_probabilities, temperature),
        (logits / temperature).logsumexp(dim=-1),
        outputs.features,
    )


def _less(outputs: ModelOutputs, offsets: Tensor) -> ModelOutputs:
    """Returns the outputs with (n, d) `offsets` subtracted from all features of each picture."""
    return replace(outputs, features=outputs.features - offsets[:, None, None, :])

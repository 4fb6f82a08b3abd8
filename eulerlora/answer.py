"""From the network's outputs for images to their answers: uncertainty, scores, flags and sets.

`answer` computes them for n images; `response_fields` states one of them in a response body.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.nn.network import NetworkOutput
from eulerlora.scores.ood_scores import (
    ScoredByName,
    ScoreName,
    ood_scores,
    score_values,
)
from eulerlora.scores.prediction_sets import (
    PredictionSetCalibration,
    PredictionSets,
    prediction_sets,
)
from eulerlora.scores.uncertainty import (
    Uncertainty,
    Variance,
    joined,
    summarise,
    variance_of,
)
from eulerlora_contract import answers as contract
from eulerlora_contract.answers import PredictionWarning, Threshold, WarningCode
from eulerlora_contract.errors import NonFiniteError
from eulerlora_contract.sampling import AUTO, Auto, Mode, Precision, Sampler, Views


@dataclass(frozen=True)
class RunOptions:
    """The options of a prediction, which its prediction sets must have been calibrated for."""

    mode: Mode
    samples: int | Auto
    sampler: Sampler
    precision: Precision
    views: Views = 1

    def __str__(self) -> str:
        sampled = f", {self.samples} samples, {self.sampler}" if self.mode == "stoch" else ""
        views = f", {self.views} views" if self.views > 1 else ""
        return f"{self.mode}{sampled}{views}, {self.precision}"


@dataclass(frozen=True)
class Predictions(Uncertainty):
    """The answer for n images; tensors are on the CPU, float64 unless stated otherwise.

    Attributes:
        ood: (n,) bool, True if the MSP is below the checkpoint's threshold; None without a
            threshold for this mode, number of samples, sampler and number of views.
        unfamiliar: (n,) bool, True if the feature distance is above its threshold; None without
            one.
        ood_scores: Values, thresholds and flags of all scores by name.
        samples: (n,) int64, samples per adapter of the answer.
        rows: (n,) int64, rows that were run; None unless samples="auto".
        views: (n,) int64, number of views of the image that the trajectories share between them.
        variance: Its parts between adapters, views and samples, and within trajectories.
        trajectories: (n, adapters * samples, classes) probabilities, adapter by adapter; in mode
            det (n, adapters * views, classes). If images have different numbers of samples, those
            with fewer are filled with NaN.
        trajectory_views: (n, trajectories) int64, the view of each (`eulerlora.nn.rows`); 0 is the
            image, and where trajectories are filled with NaN.
        labels: The class name with the highest mean probability, one per image.
        coverage: That the prediction sets should have; None without sets.
        prediction_sets: None without a coverage, or if the checkpoint is not calibrated for it.
        warnings: Reasons for missing results, and conversions of images, such as those of colours.
    """

    ood: Tensor | None
    unfamiliar: Tensor | None
    ood_scores: ScoredByName
    samples: Tensor
    rows: Tensor | None
    views: Tensor
    variance: Variance
    trajectories: Tensor
    trajectory_views: Tensor
    labels: tuple[str, ...]
    coverage: float | None = None
    prediction_sets: PredictionSets | None = None
    warnings: tuple[PredictionWarning, ...] = ()


def answer(
    outputs: Sequence[NetworkOutput],
    config: CheckpointConfig,
    options: RunOptions,
    coverage: float | None = None,
) -> Predictions:
    """Returns the answer for the images of `outputs`, in order.

    Args:
        outputs: With feature distances if the checkpoint has feature statistics.
        config: Of the checkpoint; its thresholds and prediction sets for these options are used.
        options: Of the prediction.
        coverage: Adds prediction sets; None for none.

    Raises:
        NonFiniteError: For NaN or infinite logits.
    """
    adapters = config.adapters.settings.adapters
    classes = config.class_names
    groups = _groups(outputs, adapters, len(classes), options.samples)
    if not all(group.probabilities.isfinite().all() for group in groups):
        raise NonFiniteError("expected finite logits from the network, got NaN or infinity")
    summary = joined([summarise(group.probabilities.flatten(1, 2)) for group in groups])
    thresholds = config.threshold(options.mode, options.samples, options.sampler, options.views)
    scores = ood_scores(_score_values(outputs, summary.msp), thresholds)
    counts = torch.cat([torch.full(group.views.shape[:1], group.count) for group in groups])
    samples = torch.ones_like(counts) if options.mode == "det" else counts
    most = max(group.count for group in groups)
    padded = [group.padded(most) for group in groups]
    predictions = Predictions(
        **vars(summary),
        ood=scores["msp"].flagged,
        unfamiliar=scores["feature_distance"].flagged if "feature_distance" in scores else None,
        ood_scores=scores,
        samples=samples,
        rows=adapters * counts if options.samples == AUTO else None,
        views=torch.full_like(samples, options.views),
        variance=joined([variance_of(group.probabilities, group.views) for group in groups]),
        trajectories=torch.cat([group.probabilities for group in padded]).flatten(1, 2),
        trajectory_views=torch.cat([group.views for group in padded]).flatten(1, 2),
        labels=tuple(classes[k] for k in summary.probabilities.argmax(dim=-1).tolist()),
        coverage=coverage,
        warnings=tuple(_missing_thresholds(scores, options, config.thresholds)),
    )
    if coverage is None:
        return predictions
    return _with_prediction_sets(predictions, coverage, options, config)


def response_fields(predictions: Predictions, index: int, classes: Sequence[str]) -> dict[str, Any]:
    """Returns what the response body states about the answer for the image `index`.

    The keys are fields of `eulerlora_contract.answers.Prediction`. Those that the options did not
    ask for, or that the checkpoint does not have, are absent. `classes` are the names of the
    model's classes, in the order of the probabilities.
    """
    scores = {
        name: contract.OodScore(
            value=score.value[index].item(),
            threshold=score.threshold,
            flagged=None if score.flagged is None else bool(score.flagged[index]),
        )
        for name, score in predictions.ood_scores.items()
    }
    fields: dict[str, Any] = {
        "samples": int(predictions.samples[index]),
        "label": predictions.labels[index],
        "probabilities": dict(zip(classes, predictions.probabilities[index].tolist(), strict=True)),
        "entropy": predictions.entropy[index].item(),
        "expected_entropy": predictions.expected_entropy[index].item(),
        "mutual_information": predictions.mutual_information[index].item(),
        "msp": predictions.msp[index].item(),
        "ood": scores["msp"].flagged,
        "ood_threshold": scores["msp"].threshold,
        "ood_scores": contract.OodScores(**scores),
    }
    if predictions.views[index] > 1:
        fields["views"] = int(predictions.views[index])
    if "feature_distance" in scores:
        fields["unfamiliar"] = scores["feature_distance"].flagged
    if predictions.rows is not None:
        fields["rows"] = int(predictions.rows[index])
    if predictions.coverage is not None:
        fields["prediction_set"] = None
    if (sets := predictions.prediction_sets) is not None:
        fields["prediction_set"] = contract.PredictionSet(
            labels=sets.labels[index],
            coverage=sets.coverage,
            unit=sets.unit,
            calibrated_on=sets.calibrated_on,
        )
    return fields


def _missing_thresholds(
    scores: ScoredByName, options: RunOptions, thresholds: Sequence[Threshold]
) -> Iterator[PredictionWarning]:
    """Yields the reason of every null flag; a missing threshold of the MSP explains all of them."""
    missing = [name for name, score in scores.items() if score.flagged is None]
    sampled = f" with samples={options.samples}" if options.mode == "stoch" else ""
    if "msp" in missing:
        message = contract.missing_threshold(thresholds, options.mode, options.samples) or (
            f"the checkpoint has no OOD threshold for mode {options.mode} with this sampler and "
            f"views={options.views}"
        )
    elif missing:
        names = ", ".join(missing)
        message = f"the checkpoint has no threshold of {names} for mode {options.mode}{sampled}"
    else:
        return
    yield PredictionWarning(code=WarningCode.NO_OOD_THRESHOLD, message=message)


def _with_prediction_sets(
    predictions: Predictions, coverage: float, options: RunOptions, config: CheckpointConfig
) -> Predictions:
    """Returns the predictions with their sets, or with a warning if there is no calibration."""
    calibration = calibration_for(config, coverage, options)
    if calibration is None:
        reason = missing_calibration(config, coverage, options)
        warning = PredictionWarning(code=WarningCode.NO_PREDICTION_SET, message=reason)
        return replace(predictions, warnings=(*predictions.warnings, warning))
    sets = prediction_sets(predictions.probabilities, calibration, config.class_names)
    mismatch = precision_mismatch(calibration, options.precision)
    if mismatch is None:
        return replace(predictions, prediction_sets=sets)
    warning = PredictionWarning(code=WarningCode.OTHER_PRECISION, message=mismatch)
    return replace(predictions, prediction_sets=sets, warnings=(*predictions.warnings, warning))


@dataclass(frozen=True)
class _Trajectories:
    """The trajectories of n images with equal numbers of them.

    Attributes:
        probabilities: (n, adapters, count, classes).
        views: (n, adapters, count).
    """

    probabilities: Tensor
    views: Tensor

    @classmethod
    def of(cls, outputs: Sequence[NetworkOutput], adapters: int) -> "_Trajectories":
        probabilities = torch.stack([output.log_probabilities.exp() for output in outputs])
        image_itself = torch.zeros(probabilities.shape[1], dtype=torch.int64)  # view 0
        views = [image_itself if output.views is None else output.views for output in outputs]
        return cls(
            probabilities.unflatten(1, (adapters, -1)),
            torch.stack(views).unflatten(1, (adapters, -1)),
        )

    @property
    def count(self) -> int:
        return self.views.shape[2]

    def padded(self, count: int) -> "_Trajectories":
        missing = count - self.count
        return _Trajectories(
            F.pad(self.probabilities, (0, 0, 0, missing), value=torch.nan),
            F.pad(self.views, (0, missing)),
        )


def _groups(
    outputs: Sequence[NetworkOutput], adapters: int, classes: int, samples: int | Auto
) -> list[_Trajectories]:
    """Returns the trajectories in groups, in order.

    All images are one group, unless their numbers of samples may differ: then each is a group.
    """
    if not outputs:
        shape = (0, adapters, 1 if samples == AUTO else samples)
        empty = torch.empty(*shape, classes, dtype=torch.float64)
        return [_Trajectories(empty, torch.empty(shape, dtype=torch.int64))]
    groups = [[output] for output in outputs] if samples == AUTO else [outputs]
    return [_Trajectories.of(group, adapters) for group in groups]


def _score_values(outputs: Sequence[NetworkOutput], msp: Tensor) -> dict[ScoreName, Tensor]:
    """Returns the scores (n,) of images by name, from their outputs and their MSP (n,)."""
    if not outputs:
        return score_values(msp, msp, None)
    distances = [output.distance for output in outputs if output.distance is not None]
    return score_values(
        msp,
        torch.stack([output.log_partition.mean() for output in outputs]),
        torch.stack(distances) if distances else None,
    )


def calibrations_for(
    config: CheckpointConfig, options: RunOptions
) -> list[PredictionSetCalibration]:
    """Returns the checkpoint's calibrations for predictions with these options.

    The sampler matters in mode `stoch` only. A calibration in another precision stands in for a
    missing one (`precision_mismatch`).
    """
    if not config.is_fitted_to(options.mode, views=options.views):
        return []
    entries = config.in_precision(options.precision).prediction_sets
    return [entry for entry in entries if _applies(entry, options)]


def precision_mismatch(calibration: PredictionSetCalibration, precision: Precision) -> str | None:
    """Returns a warning if a calibration is of another precision than a prediction; else None."""
    if calibration.precision == precision:
        return None
    return (
        f"the prediction sets were calibrated in {calibration.precision} and the prediction is in "
        f"{precision}: their coverage holds up to the difference between both"
    )


def calibration_for(
    config: CheckpointConfig, coverage: float, options: RunOptions
) -> PredictionSetCalibration | None:
    """Returns the checkpoint's calibration for a coverage; None if it has none for the options."""
    entries = calibrations_for(config, options)
    return next((entry for entry in entries if entry.coverage == coverage), None)


def missing_calibration(config: CheckpointConfig, coverage: float, options: RunOptions) -> str:
    """Returns why there is no prediction set, and for which options there are some."""
    available = _descriptions(config)
    known = f"it has {'; '.join(available)}" if available else "it has none"
    return (
        f"the checkpoint has no prediction sets with coverage {coverage:g} for {options}; {known}"
    )


def _applies(calibration: PredictionSetCalibration, options: RunOptions) -> bool:
    sampled = (calibration.samples, calibration.sampler) == (options.samples, options.sampler)
    return calibration.mode == options.mode and (options.mode == "det" or sampled)


def _descriptions(config: CheckpointConfig) -> list[str]:
    """Returns the options of the checkpoint's calibrations, each with its coverages."""
    coverages: dict[RunOptions, list[str]] = {}
    for calibration in config.prediction_sets:
        options = RunOptions(
            calibration.mode,
            calibration.samples,
            calibration.sampler,
            calibration.precision,
            config.default_views(calibration.mode),
        )
        coverages.setdefault(options, []).append(f"{calibration.coverage:g}")
    return [f"{' and '.join(values)} for {options}" for options, values in coverages.items()]

"""Calibration of a checkpoint: feature statistics and the thresholds of its OOD scores."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from eulerlora.adaptive_sampling import MAX_SAMPLES, ROUNDS, samples_until_converged
from eulerlora.checkpoint import load_checkpoint, revision_of, write_config
from eulerlora.config import CheckpointConfig, FeatureConfig, ScoreThreshold, Threshold
from eulerlora.feature_distance import (
    SHRINKAGE,
    FeatureDistance,
    FeatureStatistics,
    fit_feature_statistics,
    write_feature_statistics,
)
from eulerlora.model import EulerLoRA
from eulerlora.ood_scores import ScoreName
from eulerlora.precision import decide_precision
from eulerlora.safetensor_files import tensors_sha256
from eulerlora.settings import AUTO, Auto, Mode, PrecisionChoice, RuntimeSettings, Sampler
from training.data.labelled_images import ImageParts, LabelledImage, evenly_spaced
from training.evaluation.inference import ModelOutputs, SamplingOptions, predict_all
from training.evaluation.prediction_sets import (
    NO_COVERAGE,
    CoverageSettings,
    check_lesions,
    fit_prediction_sets,
)
from training.recipe.schema import SAMPLES

TARGET_TPR = 0.95
QUARTER = 0.25
MAX_FEATURE_IMAGES = 10_000
"""Training images, evenly spaced, from which the feature statistics are computed, at most."""


@dataclass(frozen=True)
class ScoredImages:
    """Scores and labels of n calibration images for a mode and a number of samples.

    scores: (n,) by name. labels: (n,) predicted class indices of `classes` classes.
    """

    scores: Mapping[ScoreName, Tensor]
    labels: Tensor
    classes: int


@dataclass(frozen=True)
class CalibrationOutputs:
    """The outputs of a model for the calibration images, without and with samples."""

    det: ModelOutputs
    stoch: ModelOutputs

    @classmethod
    def of(
        cls, model: EulerLoRA, images: Sequence[LabelledImage], samples: Sequence[int | Auto]
    ) -> "CalibrationOutputs":
        """Predicts the images, with the largest of `samples`."""
        largest = max(count if isinstance(count, int) else MAX_SAMPLES for count in samples)
        options = [SamplingOptions("det"), SamplingOptions("stoch", largest)]
        return cls(*predict_all(model, images, options, "calibrate"))

    def probabilities(self, samples: Sequence[int | Auto]) -> dict[SamplingOptions, Tensor]:
        """Returns the mean probabilities (n, classes) of `det` and of every number of samples."""
        counts = [count for count in samples if isinstance(count, int)]
        return {
            SamplingOptions("det"): self.det.probabilities(),
            **{
                SamplingOptions("stoch", count): self.stoch.probabilities(count) for count in counts
            },
        }


def calibrate(
    folder: Path,
    images: ImageParts,
    device: torch.device,
    samples: Sequence[int | Auto] = SAMPLES,
    sampler: Sampler | None = None,
    coverage: CoverageSettings = NO_COVERAGE,
    precision: PrecisionChoice = "float32",
) -> CheckpointConfig:
    """Fits feature statistics, OOD thresholds and prediction sets; returns the new config.

    The thresholds and sets are those of `det`, and of `stoch` with `samples`; there are no sets for
    `auto`. Earlier sets are removed, also without a new coverage.

    Fits the statistics on the training part, and the thresholds on the calibration part, or the
    test part of a split without one; the config names them. Replaces `ood.safetensors` and
    `config.json`. The seeds come from the revision without thresholds, so a second calibration
    gives the same thresholds.
    sampler: new sampler of the checkpoint; None keeps the present one. precision: of the
    predictions, which the config records; `auto` as in `eulerlora.precision`. Raises DataError if
    a class has too few lesions for the coverage, before any work.
    """
    checkpoint = load_checkpoint(folder)
    uncalibrated = checkpoint.config.model_copy(
        update={
            "sampler": sampler or checkpoint.config.sampler,
            "thresholds": (),
            "features": None,
            "prediction_sets": (),
        }
    )
    part = "calibration" if "calibration" in images.parts else "test"
    held_out, data = images.parts[part], f"{images.name}, {part} part"
    names = [label.name for label in uncalibrated.classes]
    check_lesions(held_out, names, coverage)
    revision = revision_of(uncalibrated)
    source = replace(checkpoint, config=uncalibrated, revision=revision)
    decision = decide_precision(precision, source, device)
    runtime = RuntimeSettings(precision=decision.precision)
    model = EulerLoRA(source, device, runtime, decision.reason)
    statistics, features = compute_feature_statistics(model, images)
    outputs = CalibrationOutputs.of(model, held_out, samples)
    calibrated = uncalibrated.model_copy(
        update={
            "features": features,
            "thresholds": tuple(
                threshold.model_copy(update={"precision": model.precision})
                for threshold in compute_thresholds(
                    outputs, data, FeatureDistance(statistics), samples
                )
            ),
            "prediction_sets": fit_prediction_sets(
                outputs.probabilities(samples),
                held_out,
                names,
                coverage,
                uncalibrated.sampler,
                model.precision,
                data,
            ),
        }
    )
    write_config(folder, uncalibrated)  # a config never describes the statistics of another one
    write_feature_statistics(folder, statistics)
    write_config(folder, calibrated)
    return calibrated


def compute_feature_statistics(
    model: EulerLoRA, images: ImageParts
) -> tuple[FeatureStatistics, FeatureConfig]:
    """Returns the statistics of the training part in mode `det`, and their description."""
    train = evenly_spaced(images.parts["train"], MAX_FEATURE_IMAGES)
    (outputs,) = predict_all(model, train, [SamplingOptions("det")], "features")
    labels = torch.tensor([image.label for image in train])
    features = outputs.features.mean(dim=(1, 2))
    statistics = fit_feature_statistics(features, labels, len(model.classes))
    return statistics, FeatureConfig(
        sha256=tensors_sha256(statistics.tensors),
        shrinkage=SHRINKAGE,
        components=len(statistics.means),
        images=len(train),
        data=f"{images.name}, train part",
    )


def compute_thresholds(
    outputs: CalibrationOutputs,
    data: str,
    distance: FeatureDistance | None,
    samples: Sequence[int | Auto] = SAMPLES,
    tpr: float = TARGET_TPR,
) -> tuple[Threshold, ...]:
    """Returns thresholds for each mode and number of samples, each with a TPR of at least `tpr`.

    All numbers of samples share one set of draws: the first s of the largest number, which have
    the distribution of s samples with both samplers. distance: None to leave out its thresholds.
    """
    return (
        _threshold("det", 1, scored_images(outputs.det, distance, 1), data, tpr),
        *stochastic_thresholds(outputs.stoch, distance, samples, data, tpr),
    )


def stochastic_thresholds(
    outputs: ModelOutputs,
    distance: FeatureDistance | None,
    samples: Sequence[int | Auto],
    data: str,
    tpr: float = TARGET_TPR,
) -> list[Threshold]:
    """Returns thresholds for each number of samples, `auto` last; arguments as above.

    outputs: with the largest of `samples`.
    """
    counts = [count for count in samples if isinstance(count, int)]
    thresholds = {
        count: _threshold("stoch", count, scored_images(outputs, distance, count), data, tpr)
        for count in counts
    }
    if AUTO not in samples:
        return list(thresholds.values())
    # The same as CheckpointConfig.convergence_threshold, by which predictions decide.
    convergence = thresholds[max(counts)].msp if counts else None
    converged = _converged_images(outputs, distance, convergence)
    return [*thresholds.values(), _threshold("stoch", AUTO, converged, data, tpr)]


def scored_images(
    outputs: ModelOutputs, distance: FeatureDistance | None, samples: int
) -> ScoredImages:
    """Returns scores and labels from the first `samples` samples of each adapter."""
    probabilities = outputs.probabilities(samples)
    scores = outputs.scores(distance, samples)
    return ScoredImages(scores, probabilities.argmax(dim=-1), probabilities.shape[-1])


def threshold_at_tpr(scores: Tensor, tpr: float) -> float:
    """Returns the highest threshold that at least a share `tpr` of the scores reach.

    scores: (n,).
    """
    accepted = math.ceil(tpr * len(scores))
    return float(scores.sort(descending=True).values[accepted - 1])


def score_threshold(scores: Tensor, tpr: float = TARGET_TPR) -> ScoreThreshold:
    """Returns the lowest threshold that a share `tpr` of the scores do not exceed. scores: (n,)."""
    threshold = -threshold_at_tpr(-scores, tpr)
    return ScoreThreshold(
        threshold=threshold,
        kept=_share(scores <= threshold),
        upper_quartile=-threshold_at_tpr(-scores, 1 - QUARTER),
    )


def _converged_images(
    outputs: ModelOutputs, distance: FeatureDistance | None, convergence_threshold: float | None
) -> ScoredImages:
    """Returns scores and labels over the samples that `auto` runs for each image."""
    rounds = [scored_images(outputs, distance, count) for count in ROUNDS]
    counts = samples_until_converged(outputs.log_probabilities.exp(), convergence_threshold)
    last = torch.searchsorted(torch.tensor(ROUNDS), counts).unsqueeze(0)  # (1, n)

    def at_last_round(values: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(values)).gather(0, last)[0]

    return ScoredImages(
        {
            name: at_last_round([scored.scores[name] for scored in rounds])
            for name in rounds[0].scores
        },
        at_last_round([scored.labels for scored in rounds]),
        rounds[0].classes,
    )


def _threshold(
    mode: Mode, samples: int | Auto, images: ScoredImages, data: str, tpr: float
) -> Threshold:
    msp, distances = images.scores["msp"], images.scores.get("feature_distance")
    threshold = threshold_at_tpr(msp, tpr)
    return Threshold(
        mode=mode,
        samples=samples,
        msp=threshold,
        kept=_share(msp >= threshold),
        images=len(msp),
        data=data,
        energy=score_threshold(images.scores["energy"], tpr),
        feature_distance=None if distances is None else score_threshold(distances, tpr),
        label_shares=tuple(_label_shares(images)),
    )


def _label_shares(images: ScoredImages) -> list[float]:
    counts = torch.bincount(images.labels, minlength=images.classes)
    shares: list[float] = (counts.double() / len(images.labels)).tolist()
    return shares


def _share(values: Tensor) -> float:
    """Returns the share of true values. values: (n,) bool."""
    return float(values.double().mean())

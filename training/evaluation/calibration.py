"""Calibration of a checkpoint: feature statistics and the thresholds of its OOD scores."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from eulerlora.adaptive_sampling import MAX_SAMPLES, ROUNDS, samples_until_converged
from eulerlora.checkpoint import load_checkpoint, revision_of, sampled_from, write_config
from eulerlora.config import (
    CheckpointConfig,
    DecisionMargins,
    FeatureConfig,
    ScoreThreshold,
    Threshold,
)
from eulerlora.decision_margins import (
    DET_ROUND,
    MARGIN_ROUNDS,
    RoundAnswers,
    fit_margins,
    last_rounds,
)
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
from eulerlora.round_answer import round_answers
from eulerlora.safetensor_files import tensors_sha256
from eulerlora.settings import (
    ADAPTIVE,
    AUTO,
    Auto,
    PrecisionChoice,
    RequestMode,
    RuntimeSettings,
    Sampler,
)
from eulerlora.stopping_rule import StoppingRule
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

    def scored(self, distance: FeatureDistance | None) -> dict[int, ScoredImages]:
        """Returns scores and labels by round, as `answers`."""
        stoch = {count: scored_images(self.stoch, distance, count) for count in ROUNDS}
        return {DET_ROUND: scored_images(self.det, distance, 1), **stoch}

    def answers(self, distance: FeatureDistance | None) -> RoundAnswers:
        """Returns the answers by round, for outputs with `MAX_SAMPLES` samples."""
        rounds = {DET_ROUND: (self.det, 1), **{count: (self.stoch, count) for count in ROUNDS}}
        return {
            samples: round_answers(
                outputs.log_probabilities[:, :, :count].exp(),
                samples,
                outputs.scores(distance, count).get("feature_distance"),
            )
            for samples, (outputs, count) in rounds.items()
        }


def calibrate(
    folder: Path,
    images: ImageParts,
    device: torch.device,
    samples: Sequence[int | Auto] = SAMPLES,
    sampler: Sampler | None = None,
    coverage: CoverageSettings = NO_COVERAGE,
    sampled_from_block: int | None = None,
    precision: PrecisionChoice = "float32",
) -> CheckpointConfig:
    """Fits feature statistics, OOD thresholds, decision margins and prediction sets.

    Returns the new config. The thresholds and sets are those of `det`, and of `stoch` with
    `samples`; there are no sets for `auto`. `auto` also fits margins, for it and mode `adaptive`,
    if there are enough images (`eulerlora.decision_margins`). Earlier sets are removed, also
    without a new coverage.

    Fits the statistics on the training part, and the thresholds on the calibration part, or the
    test part of a split without one; the config names them. Replaces `ood.safetensors` and
    `config.json`. The seeds come from the revision without thresholds, so a second calibration
    gives the same thresholds.
    sampler, sampled_from_block: new ones of the checkpoint; None keeps the present ones. precision:
    of the predictions, which the config records; `auto` as in `eulerlora.precision`.
    Raises DataError if a class has too few lesions for the coverage, before any work.
    """
    checkpoint = load_checkpoint(folder)
    if sampled_from_block is not None:
        checkpoint = sampled_from(checkpoint, sampled_from_block)
    uncalibrated = checkpoint.config.model_copy(
        update={
            "sampler": sampler or checkpoint.config.sampler,
            "thresholds": (),
            "margins": None,
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
    distance = FeatureDistance(statistics)
    margins = compute_margins(outputs, data, distance, samples)
    calibrated = uncalibrated.model_copy(
        update={
            "features": features,
            "thresholds": tuple(
                threshold.model_copy(update={"precision": model.precision})
                for threshold in compute_thresholds(
                    outputs, data, distance, samples, margins=margins
                )
            ),
            "margins": margins,
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
    margins: DecisionMargins | None = None,
) -> tuple[Threshold, ...]:
    """Returns thresholds for each mode and number of samples, each with a TPR of at least `tpr`.

    All numbers of samples share one set of draws: the first s of the largest number, which have
    the distribution of s samples with both samplers. distance: None to leave out its thresholds.
    margins: for `auto`, and for mode `adaptive`, which has no threshold without them.
    """
    thresholds = [
        _threshold("det", 1, scored_images(outputs.det, distance, 1), data, tpr),
        *stochastic_thresholds(outputs.stoch, distance, samples, data, tpr),
    ]
    if AUTO not in samples or margins is None:
        return tuple(thresholds)
    rule = replace(_rule(thresholds[1:-1]), margins=margins)
    answers, scored = outputs.answers(distance), outputs.scored(distance)
    auto = _at_rounds(scored, last_rounds(answers, rule, MARGIN_ROUNDS[1:]))
    adaptive = _at_rounds(scored, last_rounds(answers, rule, MARGIN_ROUNDS))
    return (
        *thresholds[:-1],
        _threshold("stoch", AUTO, auto, data, tpr),
        _threshold(ADAPTIVE, AUTO, adaptive, data, tpr),
    )


def compute_margins(
    outputs: CalibrationOutputs,
    data: str,
    distance: FeatureDistance | None,
    samples: Sequence[int | Auto] = SAMPLES,
    tpr: float = TARGET_TPR,
) -> DecisionMargins | None:
    """Returns the margins of `auto` and mode `adaptive`; None without `auto` or enough images.

    Arguments as in `compute_thresholds`.
    """
    if AUTO not in samples:
        return None
    fixed = [count for count in samples if isinstance(count, int)]
    rule = _rule(stochastic_thresholds(outputs.stoch, distance, fixed, data, tpr))
    return fit_margins(outputs.answers(distance), rule, data)


def _rule(thresholds: Sequence[Threshold]) -> StoppingRule:
    """Returns the rule with the thresholds of the largest number of samples, by which predictions
    decide (`CheckpointConfig.convergence_threshold`). thresholds: in ascending order, or none."""
    if not thresholds:
        return StoppingRule()
    distance = thresholds[-1].feature_distance
    return StoppingRule(thresholds[-1].msp, None if distance is None else distance.threshold)


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
    return _at_rounds(dict(zip(ROUNDS, rounds, strict=True)), counts.tolist())


def _at_rounds(scored: Mapping[int, ScoredImages], ends: Sequence[int]) -> ScoredImages:
    """Returns the scores and labels of every image at its last round. scored: by round."""
    rounds = list(scored)
    last = torch.tensor([[rounds.index(end) for end in ends]])  # (1, n)

    def at_last_round(values: Iterable[Tensor]) -> Tensor:
        return torch.stack(list(values)).gather(0, last)[0]

    first = scored[rounds[0]]
    return ScoredImages(
        {
            name: at_last_round(part.scores[name] for part in scored.values())
            for name in first.scores
        },
        at_last_round(part.labels for part in scored.values()),
        first.classes,
    )


def _threshold(
    mode: RequestMode, samples: int | Auto, images: ScoredImages, data: str, tpr: float
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

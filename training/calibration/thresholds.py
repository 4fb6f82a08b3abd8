"""Thresholds of the OOD scores, and decision margins of `samples=auto`, from held-out images.

A model predicts the images once: without samples, and with the largest number of samples. All
numbers of samples share these draws: the first s of the largest number have the distribution of s
samples with both samplers.

A threshold is a tolerance bound over lesions, because images of one lesion are not independent: at
least KEPT_SHARE of new lesions have no image beyond it, with 95% confidence.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.model import EulerLoRA
from eulerlora.sampling.adaptive import (
    DET_ROUND,
    MAX_AUTO_SAMPLES,
    ROUNDS,
    DecisionMargins,
    RoundAnswers,
    StoppingRule,
    fit_margins,
    last_rounds,
    round_answers,
)
from eulerlora.scores.ood_scores import FeatureDistance, ScoreName
from eulerlora.scores.prediction_sets import unit_scores
from eulerlora_client.contract.answers import ScoreThreshold, Threshold, Tolerance
from eulerlora_client.contract.sampling import AUTO, Auto, Mode, Precision
from training.data.images import LabelledImage
from training.evaluation.inference import ModelOutputs, SamplingOptions, predict_all
from training.evaluation.intervals import ToleranceBound, tolerance_bound
from training.evaluation.prediction_sets import Lesions

KEPT_SHARE = 0.95
"""Share of new lesions that a threshold keeps."""
QUARTER = 0.25


@dataclass(frozen=True)
class ScoredImages:
    """Scores and labels of n calibration images for a mode and a number of samples.

    scores: (n,) by name. labels: (n,) predicted class indices of `classes` classes.
    """

    scores: Mapping[ScoreName, Tensor]
    labels: Tensor
    classes: int

    @classmethod
    def of(
        cls, outputs: ModelOutputs, distance: FeatureDistance | None, samples: int
    ) -> "ScoredImages":
        """Returns scores and labels from the first `samples` samples of each adapter."""
        probabilities = outputs.probabilities(samples)
        scores = outputs.scores(distance, samples)
        return cls(scores, probabilities.argmax(dim=-1), probabilities.shape[-1])


@dataclass(frozen=True)
class CalibrationOutputs:
    """The outputs of a model for the calibration images, without and with samples.

    precision: of the model. data: name of the images.
    """

    det: ModelOutputs
    stoch: ModelOutputs
    precision: Precision
    lesions: Lesions
    data: str

    @classmethod
    def of(
        cls,
        model: EulerLoRA,
        images: Sequence[LabelledImage],
        data: str,
        samples: Sequence[int | Auto],
    ) -> "CalibrationOutputs":
        """Predicts the images, with the largest of `samples`."""
        largest = max(count if isinstance(count, int) else MAX_AUTO_SAMPLES for count in samples)
        options = [SamplingOptions("det"), SamplingOptions("stoch", largest)]
        det, stoch = predict_all(model, images, options, "calibrate")
        return cls(det, stoch, model.precision, Lesions.of(images), data)

    def probabilities(self, samples: Sequence[int | Auto]) -> dict[SamplingOptions, Tensor]:
        """Returns the mean probabilities (n, classes) of `det` and of every number of samples."""
        return {
            SamplingOptions("det"): self.det.probabilities(),
            **{
                SamplingOptions("stoch", count): self.stoch.probabilities(count)
                for count in _fixed(samples)
            },
        }

    def rounds(self) -> dict[int, tuple[ModelOutputs, int]]:
        """Returns the outputs of the rounds of `auto`, and how many of their samples each uses.

        Requires outputs with `MAX_AUTO_SAMPLES` samples.
        """
        return {DET_ROUND: (self.det, 1), **{count: (self.stoch, count) for count in ROUNDS}}

    def answers(self, distance: FeatureDistance | None) -> RoundAnswers:
        """Returns the answers by round of `auto`."""
        return {
            samples: round_answers(
                outputs.log_probabilities[:, :, :count].exp(),
                samples,
                outputs.scores(distance, count).get("feature_distance"),
            )
            for samples, (outputs, count) in self.rounds().items()
        }

    def bound(self, scores: Tensor) -> ToleranceBound:
        """Returns the threshold of a score that is high in distribution. scores: (n,)."""
        lowest = -unit_scores(-scores, self.lesions.indices)
        return tolerance_bound(lowest.double().numpy(), KEPT_SHARE)


def with_thresholds(
    config: CheckpointConfig,
    outputs: CalibrationOutputs,
    distance: FeatureDistance | None,
    samples: Sequence[int | Auto],
) -> CheckpointConfig:
    """Returns the config with further thresholds, and with margins if it has none.

    Arguments as in `compute_thresholds`.
    """
    margins = config.margins or compute_margins(outputs, distance, samples)
    thresholds = compute_thresholds(outputs, distance, samples, margins)
    update = {"thresholds": (*config.thresholds, *thresholds), "margins": margins}
    return config.model_copy(update=update)


def compute_thresholds(
    outputs: CalibrationOutputs,
    distance: FeatureDistance | None,
    samples: Sequence[int | Auto],
    margins: DecisionMargins | None = None,
) -> tuple[Threshold, ...]:
    """Returns the thresholds of `det` and of `stoch` with each of `samples`, `auto` last.

    distance: None to leave out its thresholds. margins: of `auto`, which has no threshold without.
    """
    det = ScoredImages.of(outputs.det, distance, 1)
    thresholds = [
        _threshold("det", 1, det, outputs),
        *_fixed_thresholds(outputs, distance, samples),
    ]
    if AUTO in samples and margins is not None:
        rule = replace(_rule(thresholds[1:]), margins=margins)
        scored = {
            samples: ScoredImages.of(of_round, distance, count)
            for samples, (of_round, count) in outputs.rounds().items()
        }
        ends = last_rounds(outputs.answers(distance), rule)
        thresholds.append(_threshold("stoch", AUTO, _at_rounds(scored, ends), outputs))
    return tuple(thresholds)


def compute_margins(
    outputs: CalibrationOutputs, distance: FeatureDistance | None, samples: Sequence[int | Auto]
) -> DecisionMargins | None:
    """Returns the margins of `auto`; None if `samples` lack it, or for too few images.

    Arguments as in `compute_thresholds`.
    """
    if AUTO not in samples:
        return None
    rule = _rule(_fixed_thresholds(outputs, distance, samples))
    return fit_margins(outputs.answers(distance), rule, outputs.data)


def upper_quantile(scores: Tensor, share: float) -> float:
    """Returns the lowest limit that at least `share` of the scores do not exceed. scores: (n,)."""
    return float(scores.sort().values[math.ceil(share * len(scores)) - 1])


def _fixed(samples: Sequence[int | Auto]) -> list[int]:
    return [count for count in samples if isinstance(count, int)]


def _fixed_thresholds(
    outputs: CalibrationOutputs, distance: FeatureDistance | None, samples: Sequence[int | Auto]
) -> list[Threshold]:
    """Returns the thresholds of the fixed numbers of samples."""
    return [
        _threshold("stoch", count, ScoredImages.of(outputs.stoch, distance, count), outputs)
        for count in _fixed(samples)
    ]


def _rule(thresholds: Sequence[Threshold]) -> StoppingRule:
    """Returns the rule with the thresholds of the largest number of samples, by which predictions
    decide (`CheckpointConfig.convergence_threshold`). thresholds: of fixed numbers, ascending."""
    if not thresholds:
        return StoppingRule()
    distance = thresholds[-1].feature_distance
    return StoppingRule(thresholds[-1].msp, None if distance is None else distance.threshold)


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
    mode: Mode, samples: int | Auto, images: ScoredImages, outputs: CalibrationOutputs
) -> Threshold:
    msp, distances = images.scores["msp"], images.scores.get("feature_distance")
    bound = outputs.bound(msp)
    counts = torch.bincount(images.labels, minlength=images.classes)
    return Threshold(
        mode=mode,
        samples=samples,
        msp=bound.threshold,
        kept=_share(msp >= bound.threshold),
        images=len(msp),
        data=outputs.data,
        energy=_score_threshold(images.scores["energy"], outputs),
        feature_distance=None if distances is None else _score_threshold(distances, outputs),
        tolerance=Tolerance(
            share=bound.share,
            confidence=bound.confidence,
            units=bound.units,
            unit=outputs.lesions.unit,
        ),
        label_shares=tuple((counts.double() / len(images.labels)).tolist()),
        precision=outputs.precision,
    )


def _score_threshold(scores: Tensor, outputs: CalibrationOutputs) -> ScoreThreshold:
    """Returns the threshold of a score that is low in distribution. scores: (n,)."""
    threshold = -outputs.bound(-scores).threshold
    return ScoreThreshold(
        threshold=threshold,
        kept=_share(scores <= threshold),
        upper_quartile=upper_quantile(scores, 1 - QUARTER),
    )


def _share(values: Tensor) -> float:
    """Returns the share of true values. values: (n,) bool."""
    return float(values.double().mean())

"""Fit of the thresholds of the OOD scores, and of the decision margins."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from eulerlora.sampling.adaptive import (
    ROUNDS,
    DecisionMargins,
    StoppingRule,
    samples_until_converged,
)
from eulerlora.sampling.decision_margins import MARGIN_ROUNDS, fit_margins, last_rounds
from eulerlora.scores.feature_distance import FeatureDistance
from eulerlora_client.contract.answers import ScoreThreshold, Threshold
from eulerlora_client.contract.sampling import ADAPTIVE, AUTO, Auto, RequestMode
from training.calibration.outputs import CalibrationOutputs, ScoredImages, scored_images
from training.evaluation.inference import ModelOutputs
from training.recipe.schema import SAMPLES

TARGET_TPR = 0.95

QUARTER = 0.25


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
    if AUTO in samples and margins is not None:
        rule = replace(_rule(thresholds[1:-1]), margins=margins)
        answers, scored = outputs.answers(distance), outputs.scored(distance)
        auto = _at_rounds(scored, last_rounds(answers, rule, MARGIN_ROUNDS[1:]))
        adaptive = _at_rounds(scored, last_rounds(answers, rule, MARGIN_ROUNDS))
        thresholds[-1:] = [
            _threshold("stoch", AUTO, auto, data, tpr),
            _threshold(ADAPTIVE, AUTO, adaptive, data, tpr),
        ]
    recorded = {"precision": outputs.precision}
    return tuple(threshold.model_copy(update=recorded) for threshold in thresholds)


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

"""Out-of-distribution scores of images: MSP, energy and feature distance.

msp: the maximum of the mean probability; low out of distribution. energy: minus the mean over
trajectories of the log-sum-exp of the logits (Liu et al., NeurIPS 2020); high out of distribution.
feature_distance: `eulerlora.feature_distance`; high out of distribution.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from eulerlora.calibration_schema import ScoreThreshold, Threshold
from eulerlora.feature_distance import FeatureDistance
from eulerlora.inference import ImageOutput

ScoreName = Literal["msp", "energy", "feature_distance"]
SCORES: tuple[ScoreName, ...] = ("msp", "energy", "feature_distance")


@dataclass(frozen=True)
class OodScore:
    """A score of n images.

    value: (n,) float64. threshold: None if it was not calibrated. flagged: (n,) bool, True for an
    image beyond the threshold; None without a threshold.
    """

    value: Tensor
    threshold: float | None
    flagged: Tensor | None


OodScores = Mapping[ScoreName, OodScore]
"""The scores by name; without feature statistics there is no `feature_distance`."""


def image_scores(
    outputs: Sequence[ImageOutput], msp: Tensor, distance: FeatureDistance | None
) -> dict[ScoreName, Tensor]:
    """Returns the scores (n,) of images by name; arguments as in `score_values`."""
    if not outputs:
        return score_values(msp, msp, torch.empty(0, 1), None)
    log_partition = torch.stack([output.log_partition.mean() for output in outputs])
    scores = score_values(msp, log_partition, torch.empty(0, 1), None)
    if distance is not None:
        scores["feature_distance"] = _distances(outputs, distance)
    return scores


def with_distances(
    outputs: Sequence[ImageOutput], distance: FeatureDistance | None
) -> list[ImageOutput]:
    """Returns the outputs with their feature distances; unchanged without feature statistics.

    Together they cost little more than a single one, which reads the whole covariance.
    """
    if distance is None or not outputs:
        return list(outputs)
    values = _distances(outputs, distance)
    return [replace(output, distance=value) for output, value in zip(outputs, values, strict=True)]


def _distances(outputs: Sequence[ImageOutput], distance: FeatureDistance) -> Tensor:
    """Returns the feature distance of every image, (n,) float64; those that are known as they are.

    outputs: at least one.
    """
    known = [output.distance for output in outputs if output.distance is not None]
    if len(known) == len(outputs):
        return torch.stack(known)
    return distance(torch.stack([output.features.mean(dim=0) for output in outputs]))


def score_values(
    msp: Tensor, log_partition: Tensor, features: Tensor, distance: FeatureDistance | None
) -> dict[ScoreName, Tensor]:
    """Returns the scores (n,) of images by name, float64.

    msp: (n,). log_partition: (n,), mean over trajectories. features: (n, d), mean over
    trajectories. distance: None without feature statistics.
    """
    values: dict[ScoreName, Tensor] = {"msp": msp, "energy": -log_partition}
    if distance is not None:
        values["feature_distance"] = distance(features)
    return values


def ood_scores(values: Mapping[ScoreName, Tensor], thresholds: Threshold | None) -> OodScores:
    """Returns the scores with their thresholds and flags.

    thresholds: those of the mode, number of samples and sampler; None if there are none.
    """
    return {name: _score(name, value, thresholds) for name, value in values.items()}


def _score(name: ScoreName, value: Tensor, thresholds: Threshold | None) -> OodScore:
    if thresholds is None:
        return OodScore(value, None, None)
    if name == "msp":
        return OodScore(value, thresholds.msp, value < thresholds.msp)
    stored: ScoreThreshold | None = getattr(thresholds, name)
    if stored is None:
        return OodScore(value, None, None)
    return OodScore(value, stored.threshold, value > stored.threshold)

"""Out-of-distribution scores of images: MSP, energy and feature distance.

msp: the maximum of the mean probability; low out of distribution. energy: minus the mean over
trajectories of the log-sum-exp of the logits (Liu et al., NeurIPS 2020); high out of distribution.
feature_distance: `eulerlora.scores.feature_distance`; high out of distribution.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from eulerlora.scores.feature_distance import FeatureDistance
from eulerlora_client.contract.answers import ScoreThreshold, Threshold

ScoreName = Literal["msp", "energy", "feature_distance"]
SCORES: tuple[ScoreName, ...] = ("msp", "energy", "feature_distance")


@dataclass(frozen=True)
class FlaggedScore:
    """A score of n images.

    value: (n,) float64. threshold: None if it was not calibrated. flagged: (n,) bool, True for an
    image beyond the threshold; None without a threshold.
    """

    value: Tensor
    threshold: float | None
    flagged: Tensor | None


ScoredByName = Mapping[ScoreName, FlaggedScore]
"""The scores by name; without feature statistics there is no `feature_distance`."""


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


def ood_scores(values: Mapping[ScoreName, Tensor], thresholds: Threshold | None) -> ScoredByName:
    """Returns the scores with their thresholds and flags.

    thresholds: those of the mode, number of samples and sampler; None if there are none.
    """
    return {name: _score(name, value, thresholds) for name, value in values.items()}


def _score(name: ScoreName, value: Tensor, thresholds: Threshold | None) -> FlaggedScore:
    if thresholds is None:
        return FlaggedScore(value, None, None)
    if name == "msp":
        return FlaggedScore(value, thresholds.msp, value < thresholds.msp)
    stored: ScoreThreshold | None = getattr(thresholds, name)
    if stored is None:
        return FlaggedScore(value, None, None)
    return FlaggedScore(value, stored.threshold, value > stored.threshold)

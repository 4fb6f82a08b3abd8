"""Out-of-distribution scores of images: MSP, energy and feature distance.

msp: the maximum of the mean probability; low out of distribution. energy: minus the mean over
trajectories of the log-sum-exp of the logits (Liu et al., NeurIPS 2020); high out of distribution.
feature_distance: `eulerlora.scores.feature_distance`; high out of distribution.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from eulerlora.scores.feature_distance import FeatureDistance
from eulerlora.settings import (
    Auto,
    PositiveInt,
    Precision,
    RequestMode,
    Share,
    optional,
)
from eulerlora.validation import Settings

ScoreName = Literal["msp", "energy", "feature_distance"]
SCORES: tuple[ScoreName, ...] = ("msp", "energy", "feature_distance")


class ScoreThreshold(Settings):
    """The threshold of an OOD score that is high out of distribution.

    An image with a score above `threshold` is flagged. kept: fraction of the in-distribution images
    that are not flagged. upper_quartile: score that at most a quarter of them exceed, by which a
    monitor finds smaller shifts.
    """

    threshold: Annotated[float, Field(allow_inf_nan=False)]
    kept: Share
    upper_quartile: Annotated[float, Field(allow_inf_nan=False)]


class Threshold(Settings):
    """The OOD thresholds of a mode and a number of samples.

    An image with an MSP below `msp` is flagged as out of distribution (`ood`). samples: per
    adapter, or `auto`, also in mode `adaptive`. kept: fraction of the `images` in-distribution
    images of `data` with an MSP of at least `msp`. energy, feature_distance: thresholds of the
    other scores; None if they were not calibrated. label_shares: share of the images with each
    label, in the order of the classes; None if it was not recorded. precision: of the predictions
    that the thresholds were fitted to.
    """

    mode: RequestMode
    samples: PositiveInt | Auto
    msp: Share
    kept: Share
    images: PositiveInt
    data: str
    energy: ScoreThreshold | None = None
    feature_distance: ScoreThreshold | None = None
    label_shares: tuple[Share, ...] | None = None
    precision: Precision = optional("float32")

    @property
    def options(self) -> Hashable:
        """The predictions that the thresholds apply to, up to their precision."""
        return self.mode, self.samples


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

"""Out-of-distribution scores of images: MSP, energy and feature distance.

msp: the maximum of the mean probability; low out of distribution. energy: minus the mean over
trajectories of the log-sum-exp of the logits (Liu et al., NeurIPS 2020); high out of distribution.
feature_distance: the Mahalanobis distance of an image's features to the nearest class; high out of
distribution:

    d(z) = min over k of sqrt((z - mu_k)^T C^-1 (z - mu_k))

mu_k are the class means and C is the shared covariance of the training features (Lee et al.,
NeurIPS 2018), shrunk towards its diagonal. `eulerlora.nn.network.NetworkOutput` describes
the features. The statistics are the file `ood.safetensors` of a checkpoint.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from eulerlora_contract.checkpoints import ScoreThreshold, Threshold

ScoreName = Literal["msp", "energy", "feature_distance"]
SCORES: tuple[ScoreName, ...] = ("msp", "energy", "feature_distance")
SHRINKAGE = 0.1
"""Weight of the diagonal in the covariance, chosen on training data and generated images."""
_MIN_VARIANCE = 1e-6
"""Variance that is added to every feature, so that a constant feature has an inverse."""


@dataclass(frozen=True)
class FeatureStatistics:
    """The statistics of the features of a training set, float32.

    Attributes:
        means: (components, d), of the classes.
        covariance: (d, d), shrunk.
    """

    means: Tensor
    covariance: Tensor

    @property
    def tensors(self) -> dict[str, Tensor]:
        return dict(vars(self))


class FeatureDistance:
    """Computes distances with the Cholesky factor of the covariance, in float64.

    Raises ValueError if the covariance is not positive definite.
    """

    def __init__(self, statistics: FeatureStatistics) -> None:
        self.statistics = statistics
        lower, fault = torch.linalg.cholesky_ex(statistics.covariance.double())
        if fault.any():
            raise ValueError("expected a positive definite covariance")
        self._lower = lower
        self._means = self._whitened(statistics.means)

    def __call__(self, features: Tensor) -> Tensor:
        """Distance of features (n, d) to the nearest mean, (n,) float64."""
        # By differences: the faster product of matrices would cancel digits.
        exact = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(self._whitened(features), self._means, compute_mode=exact)
        return distances.amin(dim=-1)

    def images(self, part: Tensor) -> "FeatureDistance":
        """The distance for some of the images that it is called with, by indices or a mask."""
        return self

    def _whitened(self, vectors: Tensor) -> Tensor:
        """(n, d) vectors whose Euclidean distances are the Mahalanobis distances."""
        whitened = torch.linalg.solve_triangular(self._lower, vectors.double().T, upper=False)
        transposed: Tensor = whitened.T
        return transposed


def fit_feature_statistics(
    features: Tensor, labels: Tensor, classes: int, shrinkage: float = SHRINKAGE
) -> FeatureStatistics:
    """Fits means and covariance to features (n, d) with labels (n,), n > 0.

    A class without images has no mean. `shrinkage` is the weight of the diagonal, in (0, 1]; the
    covariance is then positive definite.
    """
    exact = features.double()
    present = [label for label in range(classes) if (labels == label).any()]
    means = torch.stack([exact[labels == label].mean(dim=0) for label in present])
    centred = exact - means[torch.searchsorted(torch.tensor(present), labels)]
    covariance = centred.T @ centred / len(centred)
    variances = covariance.diagonal()
    shrunk = (1 - shrinkage) * covariance + (shrinkage * variances + _MIN_VARIANCE).diag()
    return FeatureStatistics(means.float(), shrunk.float())


class CrossFittedDistance(FeatureDistance):
    """The distance for the n images that the statistics are fitted to.

    An image is near statistics that contain it. Its distance is therefore that from the statistics
    of the images outside of its fold, which are fewer: a threshold becomes a little higher.
    """

    def __init__(self, features: Tensor, labels: Tensor, classes: int, folds: Tensor) -> None:
        """From features (n, d), labels (n,) and the fold of each image (n,), at least two folds."""
        super().__init__(fit_feature_statistics(features, labels, classes))
        self._folds = folds
        self._outside = {
            int(fold): FeatureDistance(
                fit_feature_statistics(features[folds != fold], labels[folds != fold], classes)
            )
            for fold in folds.unique()
        }

    def __call__(self, features: Tensor) -> Tensor:
        distances = torch.empty(len(features), dtype=torch.float64)
        for fold, distance in self._outside.items():
            distances[self._folds == fold] = distance(features[self._folds == fold])
        return distances

    def images(self, part: Tensor) -> "CrossFittedDistance":
        chosen = copy.copy(self)
        chosen._folds = self._folds[part]
        return chosen


@dataclass(frozen=True)
class FlaggedScore:
    """A score of n images.

    Attributes:
        value: (n,) float64.
        threshold: None if it was not calibrated.
        flagged: (n,) bool, beyond the threshold; None without one.
    """

    value: Tensor
    threshold: float | None
    flagged: Tensor | None


ScoredByName = Mapping[ScoreName, FlaggedScore]
"""The scores by name; without feature statistics there is no `feature_distance`."""


def ood_scores(
    msp: Tensor, log_partition: Tensor, distances: Tensor | None, thresholds: Threshold | None
) -> ScoredByName:
    """Scores of n images with their thresholds and flags.

    `msp` is (n,), `log_partition` (n,), the mean over trajectories, and `distances` (n,), of the
    mean features over trajectories, None without feature statistics.
    """
    values: dict[ScoreName, Tensor] = {"msp": msp, "energy": -log_partition}
    if distances is not None:
        values["feature_distance"] = distances
    return flagged_scores(values, thresholds)


def flagged_scores(
    values: Mapping[ScoreName, Tensor], thresholds: Threshold | None
) -> ScoredByName:
    """Scores of n images by name, (n,) each, with their thresholds and flags."""
    scores: dict[ScoreName, FlaggedScore] = {}
    for name, value in values.items():
        stored: float | ScoreThreshold | None = getattr(thresholds, name, None)
        threshold = stored.threshold if isinstance(stored, ScoreThreshold) else stored
        flagged = None
        if threshold is not None:
            flagged = value < threshold if name == "msp" else value > threshold
        scores[name] = FlaggedScore(value, threshold, flagged)
    return scores

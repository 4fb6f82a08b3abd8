"""Feature distance: the Mahalanobis distance of an image's features to the nearest class.

    d(z) = min over k of sqrt((z - mu_k)^T C^-1 (z - mu_k))

mu_k are the class means and C is the shared covariance of the training features (Lee et al.,
NeurIPS 2018), shrunk towards its diagonal. `eulerlora.nn.network.NetworkOutput` describes
the features. The statistics are the file `ood.safetensors` of a checkpoint.
"""

from dataclasses import dataclass, fields
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from eulerlora.settings import Sha256
from eulerlora_client.settings import PositiveInt, Probability, Settings

SHRINKAGE = 0.1
"""Weight of the diagonal in the covariance, chosen on training data and generated images."""

MIN_VARIANCE = 1e-6
"""Variance that is added to every feature, so that a constant feature has an inverse."""

FEATURES_PER_WIDTH = 3


class FeatureConfig(Settings):
    """The statistics in `ood.safetensors` and the digest of its tensors.

    They were computed from the features of the `images` training images of `data`, in mode `det`.
    shrinkage: weight of the diagonal in the covariance, 0 to 1. components: number of means.
    """

    sha256: Sha256
    shrinkage: Probability
    components: Annotated[PositiveInt, Field(le=65_536)]
    images: PositiveInt
    data: str


@dataclass(frozen=True)
class FeatureStatistics:
    """The class means (components, d) and the shrunk covariance (d, d) of features; float32."""

    means: Tensor
    covariance: Tensor

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, as they are stored."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


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
        """Returns the distance to the nearest mean, (n,) float64. features: (n, d)."""
        difference = self._whitened(features)[:, None] - self._means  # (n, components, d)
        distances: Tensor = difference.square().sum(dim=-1).sqrt()
        return distances.amin(dim=-1)

    def _whitened(self, vectors: Tensor) -> Tensor:
        """Returns (n, d) vectors whose Euclidean distances are the Mahalanobis distances."""
        whitened = torch.linalg.solve_triangular(self._lower, vectors.double().T, upper=False)
        transposed: Tensor = whitened.T
        return transposed


def fit_feature_statistics(
    features: Tensor, labels: Tensor, classes: int, shrinkage: float = SHRINKAGE
) -> FeatureStatistics:
    """Returns the statistics of labelled features.

    features: (n, d), n > 0. labels: (n,) class indices; a class without images has no mean.
    shrinkage: weight of the diagonal, in (0, 1]; the covariance is then positive definite.
    """
    exact = features.double()
    present = [label for label in range(classes) if (labels == label).any()]
    means = torch.stack([exact[labels == label].mean(dim=0) for label in present])
    centred = exact - means[torch.searchsorted(torch.tensor(present), labels)]
    covariance = centred.T @ centred / len(centred)
    variances = covariance.diagonal()
    shrunk = (1 - shrinkage) * covariance + (shrinkage * variances + MIN_VARIANCE).diag()
    return FeatureStatistics(means.float(), shrunk.float())

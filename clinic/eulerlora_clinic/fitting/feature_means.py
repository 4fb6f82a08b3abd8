"""Class means of the feature distance, moved to the features of a site's pictures."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eulerlora.scores.ood_scores import FeatureDistance
from training.calibration.thresholds import KEPT_SHARE, group_folds, upper_quantile
from training.data.units import Units
from training.evaluation.intervals import Ints

_FOLDS = 2


@dataclass(frozen=True)
class SiteOffset:
    """The difference between a site's features and the class means.

    Another camera or lighting moves the features of all pictures alike. If the means follow, the
    distances of the site's pictures stay small, and so does their threshold; with unmoved means the
    threshold alone would rise, until unfamiliar pictures pass as well. Distances to moved means are
    those of features that are moved back by the same offset.

    Attributes:
        offset: (d,), of all pictures.
        by_picture: (n, d), from the pictures of other groups, by which the threshold of new
            pictures is set.
        threshold_before: Of the distances without `by_picture`.
        threshold_after: Of the distances with `by_picture`.
    """

    offset: Tensor
    by_picture: Tensor
    threshold_before: float
    threshold_after: float

    @property
    def helps(self) -> bool:
        """True if the moved means keep the same share of pictures with a lower threshold."""
        return self.threshold_after < self.threshold_before

    @property
    def summary(self) -> str:
        """The result in words."""
        action = "moved" if self.helps else "not moved"
        return (
            f"{action}: distance threshold {self.threshold_after:.1f} with them, "
            f"{self.threshold_before:.1f} without"
        )


def fit_offset(
    distance: FeatureDistance, features: Tensor, labels: Tensor, units: Units
) -> SiteOffset:
    """The offset of a site's pictures, with cross-fitted offsets.

    Args:
        distance: With one mean for each class.
        features: (n, d).
        labels: (n,) class indices.
        units: Of the images; their groups, at least two, stay together in the two folds.
    """
    differences = features - distance.statistics.means[labels]
    by_picture = torch.empty_like(differences)
    for rest, held_out in group_folds(units.image_groups, _FOLDS):
        by_picture[held_out] = _mean(differences[rest], units.indices[rest])
    return SiteOffset(
        offset=_mean(differences, units.indices),
        by_picture=by_picture,
        threshold_before=upper_quantile(distance(features), KEPT_SHARE),
        threshold_after=upper_quantile(distance(features - by_picture), KEPT_SHARE),
    )


def _mean(differences: Tensor, units: Ints) -> Tensor:
    """The mean over units of the means of their pictures, (d,)."""
    indices = torch.from_numpy(np.unique(units, return_inverse=True)[1])
    sizes = indices.bincount()
    weights = 1 / (sizes[indices] * len(sizes))
    return weights.to(differences) @ differences

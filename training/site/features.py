"""Feature means of a site: those of the checkpoint, moved by the mean difference at the site.

Another camera or another lighting moves the features of all pictures alike. If the means follow,
the distances of the site's pictures stay small, and so does their threshold. With unmoved means the
threshold alone would rise, until unfamiliar pictures pass as well.

Distances to moved means are those of features that are moved back by the same offset.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.model_selection import GroupKFold
from torch import Tensor

from eulerlora.scores.feature_distance import FeatureDistance, FeatureStatistics
from training.calibration.thresholds import threshold_at_tpr
from training.data.splits import SPLIT_SEED
from training.metrics.intervals import Ints

FOLDS = 2


@dataclass(frozen=True)
class SiteOffset:
    """The difference between a site's features and the class means.

    offset: (d,), of all pictures. by_picture: (n, d), from the pictures of other groups, by which
    the threshold of new pictures is set. threshold_before, threshold_after: of the distances
    without and with `by_picture`.
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
    distance: FeatureDistance, features: Tensor, labels: Tensor, groups: Ints, tpr: float
) -> SiteOffset:
    """Returns the offset of a site's pictures, with cross-fitted offsets.

    distance: with one mean for each class. features: (n, d). labels: (n,) class indices. groups:
    (n,), at least two; they stay together in the two folds. tpr: share of the pictures that a
    threshold keeps.
    """
    differences = features - distance.statistics.means[labels]
    by_picture = torch.empty_like(differences)
    folds = GroupKFold(FOLDS, shuffle=True, random_state=SPLIT_SEED)
    for rest, held_out in folds.split(groups, groups=groups):
        by_picture[held_out] = _mean(differences[rest], groups[rest])
    return SiteOffset(
        offset=_mean(differences, groups),
        by_picture=by_picture,
        threshold_before=-threshold_at_tpr(-distance(features), tpr),
        threshold_after=-threshold_at_tpr(-distance(features - by_picture), tpr),
    )


def moved(statistics: FeatureStatistics, offset: Tensor) -> FeatureStatistics:
    """Returns the statistics with all means moved by (d,) `offset`."""
    return replace(statistics, means=statistics.means + offset)


def _mean(differences: Tensor, groups: Ints) -> Tensor:
    """Returns (d,) the mean over groups of the means of their pictures."""
    indices = torch.from_numpy(np.unique(groups, return_inverse=True)[1])
    sizes = indices.bincount()
    weights = 1 / (sizes[indices] * len(sizes))
    return weights.to(differences) @ differences

"""Fit of the thresholds of a triage policy on held-out lesions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eulerlora.errors import DataError
from training.metrics.intervals import Floats
from training.policy.scores import ScoredImages
from training.policy.threshold import (
    Sensitivity,
    ThresholdCoverage,
    coverage_table,
    lesion_scores,
    round_up,
    sensitivity_at,
    urgent_threshold,
)

COVERAGES = tuple(tenths / 10 for tenths in range(1, 11))
UNCERTAIN_SHARE = 0.05
"""Default share of the images that may reach the entropy threshold."""


@dataclass(frozen=True)
class PolicyFit:
    """The thresholds of a policy, and what is known about them from the images of the fit.

    urgent: of the malignant probability. entropy_nats: of the entropy. images, lesions: all of
    them. melanoma: sensitivity by lesion. melanoma_hits: images of all melanoma_images at or above
    `urgent`. uncertain: share of the images at or above `entropy_nats`.
    """

    urgent: float
    entropy_nats: float
    images: int
    lesions: int
    melanoma: Sensitivity
    melanoma_hits: int
    melanoma_images: int
    uncertain: float
    coverages: Sequence[ThresholdCoverage]


def fit_policy(
    images: ScoredImages, required: float, uncertain_share: float = UNCERTAIN_SHARE
) -> PolicyFit:
    """Returns the thresholds for a required sensitivity to melanoma.

    uncertain_share: largest share of the images that may reach the entropy threshold. The feature
    distance has no influence: a lesion is a hit by its malignant probability, also if an image of
    it is unfamiliar. Raises DataError if no image shows melanoma.
    """
    if not images.melanoma.any():
        raise DataError("expected images with melanoma, got none")
    melanomas = lesion_scores(images.scores[images.melanoma], images.lesions[images.melanoma])
    urgent = urgent_threshold(melanomas, required)
    entropy_nats = entropy_threshold(images.entropy, uncertain_share)
    return PolicyFit(
        urgent=urgent,
        entropy_nats=entropy_nats,
        images=len(images.scores),
        lesions=len(np.unique(images.lesions)),
        melanoma=sensitivity_at(melanomas, urgent, required),
        melanoma_hits=int((images.scores[images.melanoma] >= urgent).sum()),
        melanoma_images=int(images.melanoma.sum()),
        uncertain=float((images.entropy >= entropy_nats).mean()),
        coverages=coverage_table(images.scores, images.melanoma, images.lesions, COVERAGES),
    )


def entropy_threshold(entropy: Floats, share: float) -> float:
    """Returns the lowest threshold that at most a share of the entropies reach, rounded up.

    entropy: (n,) in nats. The value has four significant digits.
    """
    reaching = math.floor(share * len(entropy))
    if reaching == len(entropy):
        return round_up(0.0)
    return round_up(float(np.sort(entropy)[::-1][reaching]))

"""Selective prediction: the errors that are left when only the most confident images are answered.

Images are accepted in the order of their score, those with equal scores together. An error is a
wrong label (0/1).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.evaluation.intervals import Floats, Weights, share
from training.evaluation.ranking import sums_by_score

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class RiskCoverage:
    """What every threshold on the score leaves, (resamples, distinct scores), the highest first.

    accepted: images with at least that score. wrong: those of them with a wrong label. The last
    column is of all images.
    """

    accepted: Floats
    wrong: Floats

    @property
    def coverage(self) -> Floats:
        """Share of the images that are accepted, in [0, 1]."""
        return share(self.accepted, self.accepted[:, -1:])

    @property
    def risk(self) -> Floats:
        """Selective risk: share of the accepted images that are wrong."""
        return share(self.wrong, self.accepted)


def risk_coverage(scores: Floats, wrong: Bools, weights: Weights) -> RiskCoverage:
    """The risk-coverage curves. scores: (n,), higher is accepted first. wrong: (n,); n > 0.

    weights: (resamples, n) whole numbers, how often each image counts.
    """
    accepted, errors = sums_by_score(scores, weights), sums_by_score(scores, weights * wrong)
    return RiskCoverage(accepted.cumsum(axis=1), errors.cumsum(axis=1))


def selective_metrics(curve: RiskCoverage) -> dict[str, Floats]:
    """AURC and AUGRC, (resamples,) each; lower is better.

    aurc: mean over k = 1..n of the selective risk of the k most confident images (Geifman, Uziel
    and El-Yaniv, ICLR 2019). augrc: integral over the coverage c from 0 to 1 of the generalised
    risk, the share of all n images that are accepted and wrong (Traub et al., NeurIPS 2024): the
    trapezoids between the points of the curve and (0, 0). Inside a tie the errors of the first k
    images are their expectation over the tie's orders: linear in k, so that the curve is a
    straight line there.
    """
    tied, errors = (np.diff(each, axis=1, prepend=0) for each in (curve.accepted, curve.wrong))
    images = curve.accepted[:, -1]
    before = curve.accepted - tied
    slope = np.nan_to_num(share(errors, tied))
    # The risk of the first k is slope + offset / k from each tie's first image to its last.
    offset = curve.wrong - errors - slope * before
    inverses = np.append(0, (1 / np.arange(1, images.max() + 1)).cumsum())
    span = inverses[curve.accepted.astype(int)] - inverses[before.astype(int)]
    return {
        "aurc": (errors + offset * span).sum(axis=1) / images,
        "augrc": ((curve.wrong - errors / 2) * tied).sum(axis=1) / images**2,
    }

"""Selective prediction: the errors that are left when only the most confident images are answered.

Images are accepted in the order of their score, those with equal scores together. An error is a
wrong label (0/1).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class RiskCoverage:
    """What every threshold on the score leaves; one entry for each distinct score, falling.

    accepted: images with at least that score. wrong: those of them with a wrong label. The last
    entry is of all images.
    """

    accepted: NDArray[np.int64]
    wrong: NDArray[np.int64]

    @property
    def coverage(self) -> Floats:
        """Share of the images that are accepted, in (0, 1]."""
        share: Floats = self.accepted / self.accepted[-1]
        return share

    @property
    def risk(self) -> Floats:
        """Selective risk: share of the accepted images that are wrong."""
        share: Floats = self.wrong / self.accepted
        return share


def risk_coverage(scores: Floats, wrong: Bools) -> RiskCoverage:
    """The risk-coverage curve. scores: (n,), higher is accepted first. wrong: (n,); n > 0."""
    _, group, sizes = np.unique(-scores, return_inverse=True, return_counts=True)
    errors = np.bincount(group, weights=wrong).astype(np.int64)
    return RiskCoverage(accepted=sizes.cumsum(), wrong=errors.cumsum())


def selective_metrics(curve: RiskCoverage) -> dict[str, float]:
    """AURC and AUGRC; lower is better.

    aurc: mean over k = 1..n of the selective risk of the k most confident images (Geifman, Uziel
    and El-Yaniv, ICLR 2019). augrc: integral over the coverage c from 0 to 1 of the generalised
    risk, the share of all n images that are accepted and wrong (Traub et al., NeurIPS 2024): the
    trapezoids between the points of the curve and (0, 0). Inside a tie the errors of the first k
    images are their expectation over the tie's orders: linear in k, so that the curve is a
    straight line there.
    """
    accepted, wrong = np.append(0, curve.accepted), np.append(0, curve.wrong)
    images = accepted[-1]
    count = np.arange(1, images + 1)
    return {
        "aurc": float(np.mean(np.interp(count, accepted, wrong) / count)),
        "augrc": float(np.trapezoid(wrong / images, accepted / images)),
    }

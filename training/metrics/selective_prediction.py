"""Selective prediction: risk-coverage curves, and how well scores rank errors."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from eulerlora.scores.uncertainty import Uncertainty
from training.metrics.classification import auroc, sums_by_score
from training.metrics.intervals import (
    Bools,
    Estimates,
    Floats,
    Ints,
    Weights,
    bootstrap,
    ratio,
)


@dataclass(frozen=True)
class RiskCoverage:
    """Selective prediction at each threshold on a score, highest threshold first.

    Both fields are (resamples, distinct scores). accepted: number of images with at least that
    score. errors: how many of them have a wrong label. The last column covers all images.
    """

    accepted: Floats
    errors: Floats

    @property
    def coverage(self) -> Floats:
        """Share of the images that are accepted, in [0, 1]."""
        return ratio(self.accepted, self.accepted[:, -1:])

    @property
    def risk(self) -> Floats:
        """Selective risk: share of the accepted images that have a wrong label."""
        return ratio(self.errors, self.accepted)


def risk_coverage(scores: Floats, wrong: Bools, weights: Weights) -> RiskCoverage:
    """Returns risk-coverage curves of selective prediction.

    scores: (n,), n > 0; images are accepted in descending order, equal scores together.
    wrong: (n,), whether the label is wrong. weights: (resamples, n) integers.
    """
    accepted, errors = sums_by_score(scores, weights), sums_by_score(scores, weights * wrong)
    return RiskCoverage(accepted.cumsum(axis=1), errors.cumsum(axis=1))


def selective_metrics(curve: RiskCoverage) -> dict[str, Floats]:
    """Returns AURC and AUGRC; lower is better.

    aurc: mean over k = 1..n of the selective risk of the k most confident images (Geifman, Uziel
    and El-Yaniv, ICLR 2019). augrc: area under the generalised risk (share of all n images that
    are accepted and wrong) against coverage, by the trapezoidal rule from (0, 0) (Traub et al.,
    NeurIPS 2024). Within a tie, the errors among the first k images are their expectation over
    all orders of the tie, which is linear in k.
    """
    tied, errors = (np.diff(sums, axis=1, prepend=0) for sums in (curve.accepted, curve.errors))
    images = curve.accepted[:, -1]
    before = curve.accepted - tied
    slope = np.nan_to_num(ratio(errors, tied))
    # Within a tie the risk of the first k images is slope + offset / k.
    offset = curve.errors - errors - slope * before
    harmonic = np.append(0, (1 / np.arange(1, images.max() + 1)).cumsum())
    span = harmonic[curve.accepted.astype(int)] - harmonic[before.astype(int)]
    return {
        "aurc": (errors + offset * span).sum(axis=1) / images,
        "augrc": ((curve.errors - errors / 2) * tied).sum(axis=1) / images**2,
    }


def error_ranking(uncertainty: Uncertainty, wrong: Bools, clusters: Ints) -> dict[str, Estimates]:
    """Returns how well MSP, entropy and mutual information rank errors, by score.

    wrong, clusters: (n,), whether the label is wrong, and the cluster index.
    auroc: the probability that an image with a wrong label is more uncertain than one with the
    right label; 0.5 for a random order. aurc: as in `selective_metrics`; the share of wrong labels
    for a random order.
    """
    confidences = {
        "msp": uncertainty.msp.numpy(),
        "entropy": -uncertainty.entropy.numpy(),
        "mutual_information": -uncertainty.mutual_information.numpy(),
    }
    return {
        score: bootstrap(partial(_ranking, confidence, wrong), clusters)
        for score, confidence in confidences.items()
    }


def _ranking(confidence: Floats, wrong: Bools, weights: Weights) -> dict[str, Floats]:
    """confidence, wrong: (n,)."""
    curve = risk_coverage(confidence, wrong, weights)
    return {
        "auroc": auroc(-confidence, wrong, weights),
        "aurc": selective_metrics(curve)["aurc"],
    }

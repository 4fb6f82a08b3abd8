"""The paper's metrics, on the mean probability over trajectories (method, "Metrics").

Each image counts as often as its weight says, in many resamples at once: weights are
(resamples, n), and every figure is (resamples,).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from training.evaluation.intervals import Floats, Ints, Weights, share
from training.evaluation.ranking import sums_by_score

Bools = NDArray[np.bool_]

ECE_BINS = 10
TPR = 0.95


@dataclass(frozen=True)
class CalibrationBins:
    """What is in each bin of the top label's probability, (bins,) each.

    edges: (bins + 1,), from 0 to 1. images: how many. right: how many got their label.
    confidence: the sum of their top probabilities.
    """

    edges: Floats
    images: Ints
    right: Ints
    confidence: Floats


def classification_metrics(
    log_probabilities: Tensor, labels: Ints, weights: Weights
) -> dict[str, Floats]:
    """Accuracy, macro-F1, macro-AUROC, ECE, NLL (nats) and Brier score.

    log_probabilities: (n, trajectories, classes). labels: (n,).
    """
    log_mean = log_probabilities.logsumexp(dim=1) - math.log(log_probabilities.shape[1])
    probabilities: Floats = log_mean.exp().numpy()
    truth = np.eye(probabilities.shape[1])[labels]
    return {
        "accuracy": mean(probabilities.argmax(axis=1) == labels, weights),
        "macro_f1": macro_f1(probabilities, labels, weights),
        "macro_auroc": macro_auroc(probabilities, labels, weights),
        "ece": calibration_error(probabilities, labels, weights),
        "nll": mean(-log_mean.numpy()[np.arange(len(labels)), labels], weights),
        "brier": mean(((probabilities - truth) ** 2).sum(axis=1), weights),
    }


def mean(values: Floats | Bools, weights: Weights) -> Floats:
    """The mean of the images' values, (n,)."""
    return share(weights @ values, weights.sum(axis=1))


def macro_f1(probabilities: Floats, labels: Ints, weights: Weights) -> Floats:
    """Mean F1 over all classes; one that no image has and none gets counts 0."""
    every_class = np.eye(probabilities.shape[1])
    truth, predicted = every_class[labels], every_class[probabilities.argmax(axis=1)]
    either = weights @ (truth + predicted)  # (resamples, classes)
    f1: Floats = np.nan_to_num(share(2 * (weights @ (truth * predicted)), either)).mean(axis=1)
    return f1


def macro_auroc(probabilities: Floats, labels: Ints, weights: Weights) -> Floats:
    """Mean one-against-rest AUROC over the classes that some images have and others have not."""
    each = np.stack(
        [auroc(scores, labels == k, weights) for k, scores in enumerate(probabilities.T)]
    )
    return share(np.nansum(each, axis=0), (~np.isnan(each)).sum(axis=0).astype(np.float64))


def auroc(scores: Floats, positive: Bools, weights: Weights) -> Floats:
    """The chance that a positive image scores higher than another one, ties counted half.

    scores, positive: (n,). Not a number without images of both kinds.
    """
    wins, losses = _both(scores, positive, weights)
    higher = wins.cumsum(axis=1) - wins / 2  # positives above each score
    return share((losses * higher).sum(axis=1), wins.sum(axis=1) * losses.sum(axis=1))


def calibration_error(probabilities: Floats, labels: Ints, weights: Weights) -> Floats:
    """Expected calibration error of the top label: 10 equal bins (lo, hi], weighted by size."""
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    gaps = np.eye(ECE_BINS)[_bins(confidence)] * (right - confidence)[:, None]
    return share(np.abs(weights @ gaps).sum(axis=1), weights.sum(axis=1))


def calibration_bins(probabilities: Floats, labels: Ints) -> CalibrationBins:
    """Images by their top label's probability, in 10 equal bins (lo, hi]; 0 is in the first.

    probabilities: (n, classes). labels: (n,).
    """
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    bins = _bins(confidence)
    return CalibrationBins(
        edges=_edges(),
        images=np.bincount(bins, minlength=ECE_BINS),
        right=np.bincount(bins[right], minlength=ECE_BINS),
        confidence=np.bincount(bins, weights=confidence, minlength=ECE_BINS).astype(np.float64),
    )


def ood_metrics(inside: Floats, outside: Floats, weights: Weights) -> dict[str, Floats]:
    """AUROC, AUPRC and FPR at 95% TPR of a score that is higher for in-distribution images.

    inside, outside: (n,), (m,) scores of in- and out-of-distribution images, whole sets. weights:
    (resamples, n + m). In-distribution is positive; AUPRC is the average precision; the FPR is
    the least among thresholds whose TPR is at least 0.95, ties kept together.
    """
    scores = np.concatenate([inside, outside])
    positive = np.arange(len(scores)) < len(inside)
    kept, passed = (each.cumsum(axis=1) for each in _both(scores, positive, weights))
    tpr, fpr = kept / kept[:, -1:], passed / passed[:, -1:]
    precision = np.nan_to_num(share(kept, kept + passed))
    enough = (tpr >= TPR).argmax(axis=1)
    return {
        "auroc": auroc(scores, positive, weights),
        "auprc": (np.diff(tpr, prepend=0) * precision).sum(axis=1),
        "fpr_at_95_tpr": fpr[np.arange(len(fpr)), enough],
    }


def _both(scores: Floats, positive: Bools, weights: Weights) -> tuple[Floats, Floats]:
    """(resamples, distinct scores), the highest first: positive images, and the others."""
    return (
        sums_by_score(scores, weights * positive),
        sums_by_score(scores, weights * ~positive),
    )


def _edges() -> Floats:
    return np.linspace(0, 1, ECE_BINS + 1)


def _bins(confidence: Floats) -> Ints:
    """(n,) the bin (lo, hi] of each top probability."""
    return np.clip(np.searchsorted(_edges(), confidence, side="left") - 1, 0, ECE_BINS - 1)

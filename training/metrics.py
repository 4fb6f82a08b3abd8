"""The paper's metrics, on the mean probability over trajectories (method, "Metrics").

Scikit-learn's where it has them; calibration error, NLL and the multiclass Brier score here.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    roc_auc_score,
    roc_curve,
)
from torch import Tensor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

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


def classification_metrics(log_probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, macro-F1, macro-AUROC, ECE, NLL (nats) and Brier score.

    log_probabilities: (n, trajectories, classes). labels: (n,). Macro-AUROC is the mean of one
    against the rest over the classes that have images; NaN where there are fewer than two.
    """
    log_mean = log_probabilities.logsumexp(dim=1) - math.log(log_probabilities.shape[1])
    probabilities: Floats = log_mean.exp().numpy()
    truth: Ints = labels.numpy()
    classes = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    return {
        "accuracy": float(accuracy_score(truth, predicted)),
        "macro_f1": float(
            f1_score(truth, predicted, labels=range(classes), average="macro", zero_division=0)
        ),
        "macro_auroc": macro_auroc(probabilities, truth),
        "ece": calibration_error(probabilities, truth),
        "nll": float(-log_mean[range(len(truth)), labels].mean()),
        "brier": float(((probabilities - np.eye(classes)[truth]) ** 2).sum(axis=1).mean()),
    }


def macro_auroc(probabilities: Floats, labels: Ints) -> float:
    """Mean one-against-rest AUROC over the classes that some images have and others have not."""
    present = [k for k in range(probabilities.shape[1]) if 0 < (labels == k).sum() < len(labels)]
    if not present:
        return math.nan
    return float(np.mean([roc_auc_score(labels == k, probabilities[:, k]) for k in present]))


def calibration_error(probabilities: Floats, labels: Ints) -> float:
    """Expected calibration error of the top label: 10 equal bins (lo, hi], weighted by size."""
    bins = calibration_bins(probabilities, labels)
    return float(np.abs(bins.right - bins.confidence).sum() / bins.images.sum())


def calibration_bins(probabilities: Floats, labels: Ints) -> CalibrationBins:
    """Images by their top label's probability, in 10 equal bins (lo, hi]; 0 is in the first.

    probabilities: (n, classes). labels: (n,).
    """
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    edges = np.linspace(0, 1, ECE_BINS + 1)
    bins = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, ECE_BINS - 1)
    return CalibrationBins(
        edges=edges,
        images=np.bincount(bins, minlength=ECE_BINS),
        right=np.bincount(bins[right], minlength=ECE_BINS),
        confidence=np.bincount(bins, weights=confidence, minlength=ECE_BINS).astype(np.float64),
    )


def ood_metrics(inside: Tensor, outside: Tensor) -> dict[str, float]:
    """AUROC, AUPRC and FPR at 95% TPR of a score that is higher for in-distribution images.

    inside, outside: (n,), (m,) scores of in- and out-of-distribution images, whole sets.
    In-distribution is positive; AUPRC is the average precision; the FPR is the least among
    thresholds whose TPR is at least 0.95, ties kept together.
    """
    scores = np.concatenate([inside.numpy(), outside.numpy()]).astype(np.float64)
    positive = np.arange(len(scores)) < len(inside)
    fpr, tpr, _ = roc_curve(positive, scores, drop_intermediate=False)
    return {
        "auroc": float(roc_auc_score(positive, scores)),
        "auprc": float(average_precision_score(positive, scores)),
        "fpr_at_95_tpr": float(fpr[tpr >= TPR].min()),
    }

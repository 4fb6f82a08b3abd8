"""Metrics of the mean probability over trajectories, and of the mean logits; selective prediction:
risk-coverage curves, and how well scores rank errors.

The literature mixes both: the code of LoRA-Ensemble, from which the paper quotes results, computes
accuracy and ECE from the softmax of the mean logits, and macro-F1, NLL and Brier score from the
mean probability. They are equal for one trajectory.

All metrics take weights (resamples, n), how often each image counts in each resample, and return
one value for each resample, (resamples,). An image of weight 2 counts as two equal images; a metric
that the images of a resample do not define, such as an AUROC without positives, is NaN.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.fft import dct, idct
from scipy.sparse import csr_array
from torch import Tensor

from eulerlora.scores.uncertainty import Uncertainty, Variance
from training.evaluation.intervals import Bools, Estimates, Floats, Ints, Weights, bootstrap, ratio

__all__ = [
    "MEAN_LOGITS",
    "CalibrationBins",
    "RiskCoverage",
    "auroc",
    "binned_error",
    "calibration_bins",
    "classification_metrics",
    "classwise_calibration_error",
    "error_ranking",
    "log_mean_probability",
    "macro_auroc",
    "ood_metrics",
    "risk_coverage",
    "selective_metrics",
    "sensitivity_at_specificity",
    "smooth_calibration_error",
    "weighted_mean",
]

MEAN_LOGITS = "_mean_logits"
"""Ending of the names of metrics of the mean logits."""
_ECE_BINS = 10
_TPR = 0.95
_CELLS, _BISECTIONS = 1024, 20
"""Resolution of the confidence and of the bandwidth of the smooth ECE."""
_ROUNDING = 1e-9
"""Tolerance of a share of images that is compared with a limit."""


@dataclass(frozen=True)
class CalibrationBins:
    """Images by the probability of their predicted label, in equal-width bins.

    Attributes:
        edges: (bins + 1,), from 0 to 1; the other fields are (bins,).
        images: Number of images.
        correct: Number of correct labels.
        confidence: Sum of the top probabilities.
    """

    edges: Floats
    images: Ints
    correct: Ints
    confidence: Floats


def log_mean_probability(log_probabilities: Tensor) -> Tensor:
    """Log of the mean probability over trajectories, (n, classes); finite where that is 0.

    `log_probabilities` are (n, trajectories, classes).
    """
    return log_probabilities.logsumexp(dim=1) - math.log(log_probabilities.shape[1])


def classification_metrics(
    log_probabilities: Tensor, labels: Ints, weights: Weights
) -> dict[str, Floats]:
    """Accuracy, macro-F1, macro-AUROC, ECE, NLL (nats) and Brier score, (resamples,) by name.

    Those of MEAN_LOGITS are also those of the softmax of the mean logits, with that ending. Shapes:
    log_probabilities (n, trajectories, classes), labels (n,), weights (resamples, n).
    """
    log_mean = log_mean_probability(log_probabilities)
    # Logits and log-probabilities of a trajectory differ by one number for all classes.
    of_mean_logits = log_probabilities.mean(dim=1).log_softmax(dim=-1)
    probabilities: Floats = log_mean.exp().numpy()
    metrics = _label_metrics(log_mean, labels, weights)
    others = _label_metrics(of_mean_logits, labels, weights)
    return {
        **metrics,
        "macro_f1": _macro_f1(probabilities, labels, weights),
        "macro_auroc": macro_auroc(probabilities, labels, weights),
        **{f"{name}{MEAN_LOGITS}": others[name] for name in metrics},
    }


def _label_metrics(log_probabilities: Tensor, labels: Ints, weights: Weights) -> dict[str, Floats]:
    """Accuracy, ECE, NLL and Brier score of log-probabilities (n, classes)."""
    probabilities: Floats = log_probabilities.exp().numpy()
    of_label = log_probabilities.numpy()[np.arange(len(labels)), labels]
    one_hot = np.eye(probabilities.shape[1])[labels]
    return {
        "accuracy": weighted_mean(probabilities.argmax(axis=1) == labels, weights),
        "ece": _calibration_error(probabilities, labels, weights),
        "nll": weighted_mean(-of_label, weights),
        "brier": weighted_mean(((probabilities - one_hot) ** 2).sum(axis=1), weights),
    }


def weighted_mean(values: Floats | Bools, weights: Weights) -> Floats:
    """The mean of values (n,) over images, (resamples,)."""
    return ratio(weights @ values, weights.sum(axis=1))


def _macro_f1(probabilities: Floats, labels: Ints, weights: Weights) -> Floats:
    """The mean F1 over all classes; a class without images or predictions counts as 0."""
    identity = np.eye(probabilities.shape[1])
    true, predicted = identity[labels], identity[probabilities.argmax(axis=1)]
    true_or_predicted = weights @ (true + predicted)  # (resamples, classes)
    f1 = np.nan_to_num(ratio(2 * (weights @ (true * predicted)), true_or_predicted))
    macro: Floats = f1.mean(axis=1)
    return macro


def macro_auroc(probabilities: Floats, labels: Ints, weights: Weights) -> Floats:
    """The mean one-against-rest AUROC over classes with positives and negatives."""
    by_class = np.stack(
        [auroc(scores, labels == k, weights) for k, scores in enumerate(probabilities.T)]
    )
    defined = (~np.isnan(by_class)).sum(axis=0).astype(np.float64)
    return ratio(np.nansum(by_class, axis=0), defined)


def auroc(scores: Floats, positive: Bools, weights: Weights) -> Floats:
    """The probability that a positive scores above a negative; ties count half.

    NaN if there are no positives or no negatives. `scores` and `positive` are (n,).
    """
    return _pairwise_auroc(
        _sums_by_score(scores, weights * positive), _sums_by_score(scores, weights * ~positive)
    )


def sensitivity_at_specificity(
    specificity: float, scores: Floats, positive: Bools, weights: Weights
) -> Floats:
    """The greatest share of positives at or above a threshold with this specificity.

    `specificity` is the least share of negatives below the threshold. NaN if there are no positives
    or no negatives. `scores` and `positive` are (n,).
    """
    positives = _sums_by_score(scores, weights * positive).cumsum(axis=1)
    negatives = _sums_by_score(scores, weights * ~positive).cumsum(axis=1)
    found = ratio(positives, positives[:, -1:])
    spared = 1 - ratio(negatives, negatives[:, -1:])
    best: Floats = np.where(spared >= specificity - _ROUNDING, found, 0).max(axis=1)
    return np.where(np.isnan(found[:, -1] + spared[:, -1]), np.nan, best)


def _calibration_error(probabilities: Floats, labels: Ints, weights: Weights) -> Floats:
    """The ECE of the predicted label: 10 equal-width bins (lo, hi], weighted by size."""
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == labels
    return binned_error(confidence, correct, weights)


def classwise_calibration_error(probabilities: Floats, labels: Ints, weights: Weights) -> Floats:
    """The class-wise ECE (Kull et al., NeurIPS 2019): the mean over classes of the ECE of their
    probability, with the same bins.
    """
    by_class = [
        binned_error(of_class, labels == k, weights) for k, of_class in enumerate(probabilities.T)
    ]
    errors: Floats = np.mean(by_class, axis=0)
    return errors


def smooth_calibration_error(probabilities: Floats, labels: Ints, weights: Weights) -> Floats:
    """The SmoothECE of the predicted label (Błasiok and Nakkiran, ICLR 2024), without bins.

    The gaps between correctness and confidence are smoothed over the confidence by a Gaussian
    kernel, reflected at 0 and 1. The error is their mean absolute value, at the bandwidth that
    equals it; it falls with the bandwidth.
    """
    confidence = probabilities.max(axis=1)
    gaps = (probabilities.argmax(axis=1) == labels) - confidence
    cells = np.minimum((confidence * _CELLS).astype(int), _CELLS - 1)
    by_cell = csr_array((gaps, (np.arange(len(gaps)), cells)), shape=(len(gaps), _CELLS))
    # A cosine transform reflects at both ends, and smoothing multiplies its coefficients.
    coefficients, frequencies = dct(weights @ by_cell, axis=1), np.pi * np.arange(_CELLS)
    total = weights.sum(axis=1)
    low, high = np.zeros_like(total), np.ones_like(total)
    for _ in range(_BISECTIONS):
        bandwidth = (low + high) / 2
        kernel = np.exp(-((bandwidth[:, None] * frequencies) ** 2) / 2)
        wider = np.abs(idct(coefficients * kernel, axis=1)).sum(axis=1) > bandwidth * total
        low, high = np.where(wider, bandwidth, low), np.where(wider, high, bandwidth)
    return ratio(total * (low + high) / 2, total)


def binned_error(confidence: Floats, hits: Bools, weights: Weights) -> Floats:
    """The ECE of probabilities (n,) that predict `hits` (n,)."""
    gaps = np.eye(_ECE_BINS)[_bin_indices(confidence)] * (hits - confidence)[:, None]
    return ratio(np.abs(weights @ gaps).sum(axis=1), weights.sum(axis=1))


def calibration_bins(probabilities: Floats, labels: Ints) -> CalibrationBins:
    """10 equal-width bins (lo, hi] of the top probability; 0 belongs to the first.

    `probabilities` are (n, classes), `labels` (n,).
    """
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == labels
    bins = _bin_indices(confidence)
    return CalibrationBins(
        edges=_bin_edges(),
        images=np.bincount(bins, minlength=_ECE_BINS),
        correct=np.bincount(bins[correct], minlength=_ECE_BINS),
        confidence=np.bincount(bins, weights=confidence, minlength=_ECE_BINS).astype(np.float64),
    )


def ood_metrics(inside: Floats, outside: Floats, weights: Weights) -> dict[str, Floats]:
    """AUROC, AUPRC and FPR at 95% TPR of a score that is higher in distribution.

    In-distribution, `inside`, is positive. AUPRC is the average precision. The FPR is the lowest
    among thresholds with TPR >= 0.95; equal scores are accepted together. All are NaN for a
    resample without in-distribution images. Shapes: inside (n,), outside (m,), weights
    (resamples, n + m).
    """
    scores = np.concatenate([inside, outside])
    positive = np.arange(len(scores)) < len(inside)
    positives = _sums_by_score(scores, weights * positive)
    negatives = _sums_by_score(scores, weights * ~positive)
    true_positives, false_positives = positives.cumsum(axis=1), negatives.cumsum(axis=1)
    tpr = ratio(true_positives, true_positives[:, -1:])
    fpr = ratio(false_positives, false_positives[:, -1:])
    precision = np.nan_to_num(ratio(true_positives, true_positives + false_positives))
    first_sufficient = (tpr >= _TPR).argmax(axis=1)
    accepted = fpr[np.arange(len(fpr)), first_sufficient]
    return {
        "auroc": _pairwise_auroc(positives, negatives),
        "auprc": (np.diff(tpr, prepend=0) * precision).sum(axis=1),
        "fpr_at_95_tpr": np.where(np.isnan(tpr[:, -1]), np.nan, accepted),
    }


def _sums_by_score(scores: Floats, amounts: Floats) -> Floats:
    """Sums of the amounts (..., n) at each of the distinct scores, highest score first."""
    order = np.argsort(-scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=np.inf))
    sums: Floats = np.add.reduceat(amounts[..., order], starts, axis=-1)
    return sums


def _pairwise_auroc(positives: Floats, negatives: Floats) -> Floats:
    """Weights (resamples, distinct scores) at each score, highest first."""
    above = positives.cumsum(axis=1) - positives / 2
    pairs = positives.sum(axis=1) * negatives.sum(axis=1)
    return ratio((negatives * above).sum(axis=1), pairs)


def _bin_edges() -> Floats:
    return np.linspace(0, 1, _ECE_BINS + 1)


def _bin_indices(confidence: Floats) -> Ints:
    """The index of the bin (lo, hi] of each top probability, (n,)."""
    return np.clip(np.searchsorted(_bin_edges(), confidence, side="left") - 1, 0, _ECE_BINS - 1)


@dataclass(frozen=True)
class RiskCoverage:
    """Selective prediction at each threshold on a score, highest threshold first.

    Attributes:
        accepted: (resamples, distinct scores), number of images with at least that score.
        errors: How many of them have a wrong label; the last column covers all images.
    """

    accepted: Floats
    errors: Floats

    @property
    def coverage(self) -> Floats:
        return ratio(self.accepted, self.accepted[:, -1:])

    @property
    def risk(self) -> Floats:
        """Selective risk: share of the accepted images that have a wrong label."""
        return ratio(self.errors, self.accepted)


def risk_coverage(scores: Floats, wrong: Bools, weights: Weights) -> RiskCoverage:
    """Risk-coverage curves of selective prediction.

    Images are accepted in descending order of `scores` (n,), equal scores together. `wrong` (n,) is
    True for a wrong label; weights are integers.
    """
    accepted, errors = _sums_by_score(scores, weights), _sums_by_score(scores, weights * wrong)
    return RiskCoverage(accepted.cumsum(axis=1), errors.cumsum(axis=1))


def selective_metrics(curve: RiskCoverage) -> dict[str, Floats]:
    """AURC and AUGRC; lower is better.

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


def error_ranking(
    uncertainty: Uncertainty, variance: Variance, wrong: Bools, clusters: Ints
) -> dict[str, Estimates]:
    """How well MSP, entropy, mutual information and parts of the variance rank errors, by score.

    Parts of the variance that are 0 for all images are left out. auroc: the probability that an
    image with a wrong label is more uncertain than one with the right label; 0.5 for a random
    order. aurc: as in `selective_metrics`; the share of wrong labels for a random order. `wrong`
    and `clusters`, the cluster index, are (n,).
    """
    confidences = {
        "msp": uncertainty.msp.numpy(),
        "entropy": -uncertainty.entropy.numpy(),
        "mutual_information": -uncertainty.mutual_information.numpy(),
    }
    for part in ("between_adapters", "between_views"):
        values = getattr(variance, part).numpy()
        if values.any():
            confidences[part] = -values

    def ranking(confidence: Floats, weights: Weights) -> dict[str, Floats]:
        curve = risk_coverage(confidence, wrong, weights)
        aurc = selective_metrics(curve)["aurc"]
        return {"auroc": auroc(-confidence, wrong, weights), "aurc": aurc}

    return {
        score: bootstrap(
            partial(ranking, confidence), clusters, compared={"auroc": wrong, "aurc": wrong}
        )
        for score, confidence in confidences.items()
    }

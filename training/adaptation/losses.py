"""Losses over the trajectories of an image, and the weights of images and classes."""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from training.data.labelled_images import OUTSIDE
from training.fit.batches import IGNORED, Floats, Ints

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(logits, targets, weights) -> the weighted sum over images, as in `trajectory_loss`."""


def trajectory_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Returns the weighted sum over images of the mean cross-entropy of their trajectories.

    logits: (n, trajectories, classes). targets: (n, classes) probabilities. weights: (n,). The
    loss of a batch is this sum divided by the sum of the weights.
    """
    return -(targets * logits.log_softmax(dim=-1).mean(dim=1)).sum(dim=-1) @ weights


def mean_probability_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Returns the weighted sum over images of the cross-entropy of their mean probability.

    Shapes as in `trajectory_loss`.
    """
    return -(targets * log_mean_probability(logits)).sum(dim=-1) @ weights


LOSSES: Mapping[Literal["trajectory", "mean"], Loss] = {
    "trajectory": trajectory_loss,
    "mean": mean_probability_loss,
}
"""Losses by the recipe key `training.loss`."""


def balanced_counts(labels: Ints, class_balance: float) -> Floats:
    """Returns (n,), how often each image is drawn on average; the sum is n.

    The images of a class together are drawn in proportion to size ** (1 - class_balance). labels:
    (n,); OUTSIDE is drawn once.
    """
    inside = labels >= 0
    sizes = np.bincount(labels[inside]).astype(np.float64)
    shares = np.where(sizes > 0, sizes ** (1 - class_balance), 0.0)
    shares *= inside.sum() / shares.sum()
    per_image = shares / np.maximum(sizes, 1)
    return np.where(inside, per_image[labels * inside], 1.0)


def log_frequency_ratio(labels: Ints, expected_counts: Floats, classes: int) -> Tensor:
    """Returns (classes,) float32, the logarithm of drawn over present images of each class.

    Training adds it to the logits (logit adjustment, Menon et al., ICLR 2021). Classes without
    images have 0. labels, expected_counts: (n,).
    """
    inside = labels >= 0
    present = np.bincount(labels[inside], minlength=classes)
    drawn = np.bincount(labels[inside], weights=expected_counts[inside], minlength=classes)
    ratio = np.where(present > 0, drawn / np.maximum(present, 1), 1.0)
    return torch.from_numpy(np.log(ratio)).float()


def target_probabilities(labels: Tensor, classes: int) -> Tensor:
    """Returns (n, classes) float32: one-hot labels; uniform for OUTSIDE; zeros for IGNORED.

    labels: (n,).
    """
    one_hot = F.one_hot(labels.clamp(min=0), classes) * (labels >= 0).unsqueeze(-1)
    return one_hot + (labels == OUTSIDE).unsqueeze(-1) / classes


def image_weights(labels: Tensor, class_weights: Tensor, outlier_weight: float) -> Tensor:
    """Returns (n,): the weight of the label's class, and 0 for IGNORED.

    OUTSIDE has `outlier_weight` times the mean class weight. labels: (n,). class_weights:
    (classes,).
    """
    outlier = torch.stack([outlier_weight * class_weights.mean(), class_weights.new_zeros(())])
    return torch.where(
        labels >= 0, class_weights[labels.clamp(min=0)], outlier[(labels == IGNORED).long()]
    )


def log_mean_probability(logits: Tensor) -> Tensor:
    """Returns the log of the mean softmax over trajectories, finite where the softmax is 0.

    logits: (n, trajectories, classes). Returns (n, classes).
    """
    return torch.logsumexp(logits.log_softmax(dim=-1), dim=1) - math.log(logits.shape[1])


def effective_number_weights(counts: Tensor, beta: float) -> Tensor:
    """Returns class weights proportional to (1 - beta) / (1 - beta^n), with sum 1.

    Effective number of samples, Cui et al., CVPR 2019. counts: (classes,), training images per
    class, all at least 1. beta: in [0, 1); 0 gives equal weights. Returns (classes,) float64.
    """
    weights = (1 - beta) / (1 - beta ** counts.double())
    return weights / weights.sum()

"""Losses on the logits of rows: an image's trajectories and its one label."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def trajectory_loss(logits: Tensor, labels: Tensor, class_weights: Tensor | None) -> Tensor:
    """Cross-entropy of every trajectory on its own, averaged over all of them and the images.

    logits: (n, trajectories, classes). labels: (n,). class_weights: (classes,) or None; the mean
    is then divided by the sum of the labels' weights.
    """
    trajectories = logits.shape[1]
    return F.cross_entropy(
        logits.flatten(0, 1), labels.repeat_interleave(trajectories), weight=class_weights
    )


def mean_loss(logits: Tensor, labels: Tensor, class_weights: Tensor | None) -> Tensor:
    """Negative log-likelihood of the mean probability over trajectories; shapes as above."""
    return F.nll_loss(log_mean_probability(logits), labels, weight=class_weights)


def log_mean_probability(logits: Tensor) -> Tensor:
    """log of the mean softmax over trajectories, without a log of 0.

    logits: (n, trajectories, classes). Returns (n, classes).
    """
    return torch.logsumexp(logits.log_softmax(dim=-1), dim=1) - math.log(logits.shape[1])

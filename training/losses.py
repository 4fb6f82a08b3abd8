"""Losses on the logits of rows: an image's trajectories and its one label."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from training.batches import IGNORED


def trajectory_loss(logits: Tensor, labels: Tensor, class_weights: Tensor) -> Tensor:
    """Cross-entropy of every trajectory on its own: their mean, summed over the images.

    logits: (n, trajectories, classes). labels: (n,); negative ones are padding and cost nothing.
    class_weights: (classes,), of each image's loss. The mean over a batch is this sum over
    `summed_weight`.
    """
    trajectories = logits.shape[1]
    summed = F.cross_entropy(
        logits.flatten(0, 1),
        labels.repeat_interleave(trajectories),
        weight=class_weights,
        ignore_index=IGNORED,
        reduction="sum",
    )
    return summed / trajectories


def mean_loss(logits: Tensor, labels: Tensor, class_weights: Tensor) -> Tensor:
    """Negative log-likelihood of the mean probability over trajectories, summed over the images;
    shapes as above.
    """
    return F.nll_loss(
        log_mean_probability(logits),
        labels,
        weight=class_weights,
        ignore_index=IGNORED,
        reduction="sum",
    )


def summed_weight(labels: Tensor, class_weights: Tensor) -> Tensor:
    """What a batch's summed loss is divided by: the sum of its labels' weights, a scalar."""
    return class_weights[labels[labels != IGNORED]].sum()


def log_mean_probability(logits: Tensor) -> Tensor:
    """log of the mean softmax over trajectories, without a log of 0.

    logits: (n, trajectories, classes). Returns (n, classes).
    """
    return torch.logsumexp(logits.log_softmax(dim=-1), dim=1) - math.log(logits.shape[1])

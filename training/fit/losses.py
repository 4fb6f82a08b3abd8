"""Losses on the logits of rows: an image's trajectories and its one wanted answer."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from training.data.datasets import OUTSIDE
from training.fit.batches import IGNORED


def trajectory_loss(logits: Tensor, shares: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy of every trajectory on its own: their mean, weighted and summed over images.

    logits: (n, trajectories, classes). shares: (n, classes), the wanted answer. weights: (n,); the
    mean over a batch is this sum over theirs.
    """
    return -(shares * logits.log_softmax(dim=-1).mean(dim=1)).sum(dim=-1) @ weights


def mean_loss(logits: Tensor, shares: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy of the mean probability over trajectories; shapes and sum as above."""
    return -(shares * log_mean_probability(logits)).sum(dim=-1) @ weights


def wanted_shares(labels: Tensor, classes: int) -> Tensor:
    """(n, classes) float32: 1 for the label; where it is OUTSIDE, as much for every class.

    labels: (n,); IGNORED, which is padding, wants nothing.
    """
    known = F.one_hot(labels.clamp(min=0), classes) * (labels >= 0).unsqueeze(-1)
    return known + (labels == OUTSIDE).unsqueeze(-1) / classes


def image_weights(labels: Tensor, class_weights: Tensor, outside: float) -> Tensor:
    """(n,): that of the label; where it is OUTSIDE, `outside` times the mean class's; 0 of padding.

    labels: (n,). class_weights: (classes,).
    """
    of_none = torch.stack([outside * class_weights.mean(), class_weights.new_zeros(())])
    return torch.where(
        labels >= 0, class_weights[labels.clamp(min=0)], of_none[(labels == IGNORED).long()]
    )


def log_mean_probability(logits: Tensor) -> Tensor:
    """log of the mean softmax over trajectories, without a log of 0.

    logits: (n, trajectories, classes). Returns (n, classes).
    """
    return torch.logsumexp(logits.log_softmax(dim=-1), dim=1) - math.log(logits.shape[1])

"""training.losses: against loops over trajectories."""

import torch
from torch.nn import functional as F

from training.batches import IGNORED
from training.losses import log_mean_probability, mean_loss, summed_weight, trajectory_loss

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(5, 8, 3, generator=GENERATOR, dtype=torch.float64) * 3
LABELS = torch.tensor([0, 2, 1, 1, 0])
WEIGHTS = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


ONES = torch.ones(3, dtype=torch.float64)


def test_the_loss_is_the_mean_of_each_trajectory_s_own_loss() -> None:
    for weights in (ONES, WEIGHTS):
        each = [F.cross_entropy(LOGITS[:, t], LABELS, weight=weights) for t in range(8)]
        found = trajectory_loss(LOGITS, LABELS, weights) / summed_weight(LABELS, weights)
        torch.testing.assert_close(found, torch.stack(each).mean())


def test_padding_costs_and_weighs_nothing() -> None:
    padded = torch.cat([LABELS, torch.tensor([IGNORED, IGNORED])])
    logits = torch.cat([LOGITS, LOGITS[:2]])
    for loss in (trajectory_loss, mean_loss):
        torch.testing.assert_close(loss(logits, padded, WEIGHTS), loss(LOGITS, LABELS, WEIGHTS))
    assert summed_weight(padded, WEIGHTS) == summed_weight(LABELS, WEIGHTS)
    assert summed_weight(padded[5:], WEIGHTS) == 0


def test_class_weights_are_normalised_by_their_sum_over_the_batch() -> None:
    losses = -LOGITS.log_softmax(-1)[range(5), :, LABELS].mean(dim=1)
    expected = (WEIGHTS[LABELS] * losses).sum() / WEIGHTS[LABELS].sum()
    found = trajectory_loss(LOGITS, LABELS, WEIGHTS) / summed_weight(LABELS, WEIGHTS)
    torch.testing.assert_close(found, expected)


def test_the_loss_of_the_mean_is_that_of_the_mean_probability() -> None:
    mean = LOGITS.softmax(-1).mean(dim=1)
    expected = -mean[range(5), LABELS].log().mean()
    torch.testing.assert_close(mean_loss(LOGITS, LABELS, ONES) / 5, expected)
    assert mean_loss(LOGITS, LABELS, ONES) < trajectory_loss(LOGITS, LABELS, ONES)  # Jensen


def test_the_log_of_a_mean_probability_is_finite_where_the_probability_is_not() -> None:
    logits = torch.tensor([[[0.0, -2000.0], [0.0, -2001.0]]], dtype=torch.float64)
    assert logits.softmax(-1).mean(dim=1)[0, 1] == 0
    found = log_mean_probability(logits)[0, 1]
    torch.testing.assert_close(
        found,
        torch.logsumexp(torch.tensor([-2000.0, -2001.0]).double(), 0) - torch.tensor(2.0).log(),
    )

"""Against loops over trajectories."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from training.data.labelled_images import OUTSIDE
from training.fit.batches import IGNORED
from training.fit.losses import (
    image_weights,
    log_mean_probability,
    mean_loss,
    target_probabilities,
    trajectory_loss,
)

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(5, 8, 3, generator=GENERATOR, dtype=torch.float64) * 3
LABELS = torch.tensor([0, 2, 1, 1, 0])
WEIGHTS = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
ONES = torch.ones(3, dtype=torch.float64)
LOSSES = (trajectory_loss, mean_loss)


def loss_of(loss, logits: Tensor, labels: Tensor, weights: Tensor, outside: float = 1.0) -> Tensor:
    """The mean over a batch, as an objective makes it."""
    each = image_weights(labels, weights, outside)
    return loss(logits, target_probabilities(labels, 3), each) / each.sum()


def test_the_loss_is_the_mean_of_each_trajectory_s_own_loss() -> None:
    for weights in (ONES, WEIGHTS):
        each = [F.cross_entropy(LOGITS[:, t], LABELS, weight=weights) for t in range(8)]
        found = loss_of(trajectory_loss, LOGITS, LABELS, weights)
        torch.testing.assert_close(found, torch.stack(each).mean())


def test_padding_costs_and_weighs_nothing() -> None:
    padded = torch.cat([LABELS, torch.tensor([IGNORED, IGNORED])])
    logits = torch.cat([LOGITS, LOGITS[:2]])
    for loss in LOSSES:
        found = loss_of(loss, logits, padded, WEIGHTS)
        torch.testing.assert_close(found, loss_of(loss, LOGITS, LABELS, WEIGHTS))
    assert image_weights(padded, WEIGHTS, 1.0)[5:].tolist() == [0, 0]


def test_class_weights_are_normalised_by_their_sum_over_the_batch() -> None:
    losses = -LOGITS.log_softmax(-1)[range(5), :, LABELS].mean(dim=1)
    expected = (WEIGHTS[LABELS] * losses).sum() / WEIGHTS[LABELS].sum()
    torch.testing.assert_close(loss_of(trajectory_loss, LOGITS, LABELS, WEIGHTS), expected)


@pytest.mark.parametrize("weights", [ONES, WEIGHTS])
def test_an_image_of_no_class_costs_its_cross_entropy_with_equal_shares(weights: Tensor) -> None:
    labels = torch.tensor([0, 2, OUTSIDE, 1, OUTSIDE])
    of_none = 0.5 * weights.mean()
    each = torch.stack([weights[0], weights[2], of_none, weights[1], of_none])
    uniform = torch.full((8, 3), 1 / 3, dtype=torch.float64)
    losses = torch.stack(
        [
            F.cross_entropy(LOGITS[i], uniform if label == OUTSIDE else label.expand(8))
            for i, label in enumerate(labels)
        ]
    )
    found = loss_of(trajectory_loss, LOGITS, labels, weights, outside=0.5)
    torch.testing.assert_close(found, (each * losses).sum() / each.sum())


def test_an_image_of_no_class_costs_least_where_all_classes_are_equally_probable() -> None:
    labels = torch.tensor([OUTSIDE])
    for loss in LOSSES:
        least = loss_of(loss, torch.zeros(1, 8, 3), labels, ONES.float())
        assert least == pytest.approx(math.log(3))
        assert loss_of(loss, LOGITS[:1], labels, ONES) > least


def test_the_loss_of_the_mean_is_that_of_the_mean_probability() -> None:
    mean = LOGITS.softmax(-1).mean(dim=1)
    expected = -mean[range(5), LABELS].log().mean()
    found = loss_of(mean_loss, LOGITS, LABELS, ONES)
    torch.testing.assert_close(found, expected)
    assert found < loss_of(trajectory_loss, LOGITS, LABELS, ONES)  # Jensen


def test_the_log_of_a_mean_probability_is_finite_where_the_probability_is_not() -> None:
    logits = torch.tensor([[[0.0, -2000.0], [0.0, -2001.0]]], dtype=torch.float64)
    assert logits.softmax(-1).mean(dim=1)[0, 1] == 0
    found = log_mean_probability(logits)[0, 1]
    torch.testing.assert_close(
        found,
        torch.logsumexp(torch.tensor([-2000.0, -2001.0]).double(), 0) - torch.tensor(2.0).log(),
    )

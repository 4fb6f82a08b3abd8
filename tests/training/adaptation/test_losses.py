"""Losses against loops over trajectories; weights of images and classes."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from training.adaptation.objective import (
    balanced_counts,
    effective_number_weights,
    image_weights,
    log_frequency_ratio,
    log_mean_probability,
    mean_probability_loss,
    target_probabilities,
    trajectory_loss,
)
from training.data.images import OUTSIDE
from training.fit.batches import IGNORED

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(5, 8, 3, generator=GENERATOR, dtype=torch.float64) * 3
LABELS = torch.tensor([0, 2, 1, 1, 0])
WEIGHTS = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
ONES = torch.ones(3, dtype=torch.float64)
LOSSES = (trajectory_loss, mean_probability_loss)


def loss_of(
    loss, logits: Tensor, labels: Tensor, weights: Tensor, outlier_weight: float = 1.0
) -> Tensor:
    """Returns the weighted mean over a batch."""
    per_image = image_weights(labels, weights, outlier_weight)
    return loss(logits, target_probabilities(labels, 3), per_image) / per_image.sum()


def test_the_trajectory_loss_is_the_mean_loss_of_the_trajectories() -> None:
    for weights in (ONES, WEIGHTS):
        losses = [F.cross_entropy(LOGITS[:, t], LABELS, weight=weights) for t in range(8)]
        actual = loss_of(trajectory_loss, LOGITS, LABELS, weights)
        torch.testing.assert_close(actual, torch.stack(losses).mean())


def test_padding_has_no_loss_and_no_weight() -> None:
    padded = torch.cat([LABELS, torch.tensor([IGNORED, IGNORED])])
    logits = torch.cat([LOGITS, LOGITS[:2]])
    for loss in LOSSES:
        actual = loss_of(loss, logits, padded, WEIGHTS)
        torch.testing.assert_close(actual, loss_of(loss, LOGITS, LABELS, WEIGHTS))
    assert image_weights(padded, WEIGHTS, 1.0)[5:].tolist() == [0, 0]


@pytest.mark.parametrize("weights", [ONES, WEIGHTS])
def test_the_loss_of_an_outlier_is_its_cross_entropy_with_the_uniform_distribution(
    weights: Tensor,
) -> None:
    labels = torch.tensor([0, 2, OUTSIDE, 1, OUTSIDE])
    outlier = 0.5 * weights.mean()
    per_image = torch.stack([weights[0], weights[2], outlier, weights[1], outlier])
    uniform = torch.full((8, 3), 1 / 3, dtype=torch.float64)
    losses = torch.stack(
        [
            F.cross_entropy(LOGITS[i], uniform if label == OUTSIDE else label.expand(8))
            for i, label in enumerate(labels)
        ]
    )
    actual = loss_of(trajectory_loss, LOGITS, labels, weights, outlier_weight=0.5)
    torch.testing.assert_close(actual, (per_image * losses).sum() / per_image.sum())


def test_the_mean_probability_loss_is_the_cross_entropy_of_the_mean_probability() -> None:
    mean = LOGITS.softmax(-1).mean(dim=1)
    expected = -mean[range(5), LABELS].log().mean()
    actual = loss_of(mean_probability_loss, LOGITS, LABELS, ONES)
    torch.testing.assert_close(actual, expected)
    assert actual < loss_of(trajectory_loss, LOGITS, LABELS, ONES)  # Jensen


def test_the_log_mean_probability_is_finite_if_the_probability_underflows() -> None:
    logits = torch.tensor([[[0.0, -2000.0], [0.0, -2001.0]]], dtype=torch.float64)
    assert logits.softmax(-1).mean(dim=1)[0, 1] == 0
    actual = log_mean_probability(logits)[0, 1]
    torch.testing.assert_close(
        actual,
        torch.logsumexp(torch.tensor([-2000.0, -2001.0]).double(), 0) - torch.tensor(2.0).log(),
    )


HAM10000_TRAINING_COUNTS = torch.tensor([879, 5364, 92, 890, 114, 411, 262])


def test_the_class_weights_of_ham10000_agree_with_the_paper() -> None:
    weights = effective_number_weights(HAM10000_TRAINING_COUNTS, 0.9991)
    expected = [0.0516, 0.0284, 0.3546, 0.0511, 0.2890, 0.0911, 0.1342]
    torch.testing.assert_close(weights, torch.tensor(expected).double(), atol=5e-5, rtol=0)
    assert float(weights.sum()) == pytest.approx(1)


def test_class_weights_are_equal_for_beta_0_and_inverse_frequencies_for_beta_near_1() -> None:
    counts = torch.tensor([1, 10, 100])
    equal = torch.full((3,), 1 / 3).double()
    torch.testing.assert_close(effective_number_weights(counts, 0.0), equal)
    inverse = (1 / counts.double()) / (1 / counts.double()).sum()
    torch.testing.assert_close(
        effective_number_weights(counts, 1 - 1e-9), inverse, atol=1e-6, rtol=0
    )


@pytest.mark.parametrize(
    ("class_balance", "expected"),
    [(0.0, [9, 4, 1]), (0.5, [7, 14 / 3, 7 / 3]), (1.0, [14 / 3] * 3)],
)
def test_classes_are_drawn_in_proportion_to_a_power_of_their_size(
    class_balance: float, expected: list[float]
) -> None:
    labels = np.repeat([0, 1, 2, OUTSIDE], [9, 4, 1, 3])
    counts = balanced_counts(labels, class_balance)
    drawn = [counts[labels == label].sum() for label in (0, 1, 2)]
    np.testing.assert_allclose(drawn, expected)
    assert (counts[labels == OUTSIDE] == 1).all()


def test_the_adjusted_loss_of_balanced_draws_is_least_at_the_probabilities_of_the_images() -> None:
    labels = np.repeat([0, 1], [9, 1])
    counts = balanced_counts(labels, 1.0)
    adjustment = log_frequency_ratio(labels, counts, 3)
    assert adjustment[2] == 0
    logits = torch.zeros(3, requires_grad=True)
    optimiser = torch.optim.LBFGS([logits], max_iter=100)

    def closure() -> Tensor:
        optimiser.zero_grad()
        log_probabilities = (logits + adjustment)[:2].log_softmax(dim=-1)
        weights = torch.from_numpy(counts)
        loss = -(weights * log_probabilities.double()[torch.from_numpy(labels)]).mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    torch.testing.assert_close(
        logits[:2].softmax(dim=-1), torch.tensor([0.9, 0.1]), atol=1e-4, rtol=0
    )

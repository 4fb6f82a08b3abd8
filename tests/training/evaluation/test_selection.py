"""Scores of uncertain images, and the choice among them with and without diversity."""

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from eulerlora.scores.uncertainty import summarise
from training.evaluation.selection import CRITERIA, most_uncertain, spread

TRAJECTORIES = torch.tensor(
    [
        [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
        [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]],
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
    ],
    dtype=torch.float64,
)
"""Of three images: two certain that agree, two uncertain, and two certain that differ."""


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [
        ("entropy", [0, entropy([0.5, 0.3, 0.2]), np.log(2)]),
        ("mutual-information", [0, 0, np.log(2)]),
        ("margin", [0, 1 - (0.5 - 0.3), 1]),
    ],
)
def test_a_score_is_higher_for_a_less_certain_answer(criterion: str, expected: list[float]) -> None:
    scores = CRITERIA[criterion](summarise(TRAJECTORIES))
    assert scores.tolist() == pytest.approx(expected)


def test_without_diversity_the_highest_scores_above_zero_are_chosen() -> None:
    scores = np.array([0.2, 0.0, 0.9, 0.4])
    assert most_uncertain(scores, 2).tolist() == [2, 3]
    assert most_uncertain(scores, 4).tolist() == [2, 3, 0]


def test_with_diversity_one_image_of_each_cluster_is_chosen() -> None:
    noise = np.random.default_rng(0)
    centres = np.repeat(np.eye(3), 5, axis=0)  # five images of each of three kinds
    features = centres + 0.01 * noise.normal(size=centres.shape)
    scores = np.repeat([0.9, 0.5, 0.1], 5) + 0.001 * noise.normal(size=15)
    assert set(most_uncertain(scores, 3) // 5) == {0}
    assert (spread(scores, features, 3, seed=0) // 5).tolist() == [0, 1, 2]  # highest score first


def test_images_without_uncertainty_are_not_clustered() -> None:
    features = np.random.default_rng(0).normal(size=(60, 2))
    scores = np.r_[np.zeros(30), np.ones(30)]
    assert spread(scores, features, 3, seed=0).min() >= 30


def test_of_equal_features_one_image_is_chosen() -> None:
    assert len(spread(np.ones(6), np.repeat(np.eye(2), 3, axis=0), 3, seed=0)) == 2

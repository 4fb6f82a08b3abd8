"""Sums with ties kept together."""

import numpy as np

from training.evaluation.ranking import sums_by_score


def test_images_of_equal_score_are_summed_the_highest_score_first() -> None:
    scores = np.array([0.5, 0.9, 0.5, 0.1])
    amounts = np.array([[1.0, 2, 4, 8], [1, 0, 0, 0]])
    assert sums_by_score(scores, amounts).tolist() == [[2, 5, 8], [0, 1, 0]]

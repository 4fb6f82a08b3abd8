"""Exact bounds, minimum numbers of lesions, thresholds and ties."""

import math

import numpy as np
import pytest
from scipy.stats import beta, binomtest

from training.policy.threshold import (
    allowed_misses,
    coverage_table,
    lesion_scores,
    lesions_with_all,
    lower_bound,
    min_lesions,
    round_down,
    round_up,
    sensitivity_at,
    urgent_threshold,
)


@pytest.mark.parametrize("lesions", [1, 2, 58, 59, 123])
def test_the_lower_bound_agrees_with_scipy_for_every_count(lesions: int) -> None:
    for hits in range(lesions + 1):
        test = binomtest(hits, lesions, alternative="greater")
        expected = test.proportion_ci(0.95, "exact").low
        assert lower_bound(hits, lesions) == pytest.approx(expected, abs=1e-9)


def test_95_per_cent_needs_59_lesions_without_a_miss() -> None:
    assert lower_bound(59, 59) >= 0.95 > lower_bound(58, 58)
    assert min_lesions(0.95) == 59 == math.ceil(math.log(0.05) / math.log(0.95))
    assert (allowed_misses(58, 0.95), allowed_misses(59, 0.95)) == (None, 0)


def test_95_per_cent_allows_one_miss_of_93_lesions_and_two_of_124() -> None:
    assert [allowed_misses(lesions, 0.95) for lesions in (92, 93, 123, 124)] == [0, 1, 1, 2]


@pytest.mark.parametrize("required", [0.5, 0.8, 0.9, 0.95, 0.99])
def test_one_more_miss_than_allowed_is_below_the_bound(required: float) -> None:
    minimum = min_lesions(required)
    assert allowed_misses(minimum - 1, required) is None
    for lesions in (minimum, minimum + 1, 2 * minimum, 500):
        misses = allowed_misses(lesions, required)
        assert misses is not None
        assert lower_bound(lesions - misses, lesions) >= required
        assert lower_bound(lesions - misses - 1, lesions) < required


@pytest.mark.parametrize("lesions", [10, 58, 59, 92, 93, 200])
def test_the_threshold_is_the_highest_that_establishes_or_has_no_miss(lesions: int) -> None:
    scores = np.random.default_rng(lesions).uniform(0.1, 0.9, lesions)
    threshold = urgent_threshold(scores, 0.95)
    actual = sensitivity_at(scores, threshold, 0.95)
    higher = sensitivity_at(scores, float(np.min(scores[scores >= threshold])) + 1e-9, 0.95)
    assert actual.established == (lesions >= 59)
    assert not higher.established
    if not actual.established:
        assert actual.hits == lesions


def test_tied_scores_are_hit_together() -> None:
    scores = np.array([0.25] * 30 + [0.5] * 100)
    threshold = urgent_threshold(scores, 0.95)
    assert sensitivity_at(scores, threshold, 0.95).hits == 130


def test_a_score_equal_to_the_threshold_is_a_hit() -> None:
    actual = sensitivity_at(np.array([0.25, 0.5]), 0.25, 0.95)
    assert (actual.hits, actual.lesions, actual.share) == (2, 2, 1.0)


def test_the_bound_holds_for_a_threshold_set_on_the_same_lesions() -> None:
    """The true share above an order statistic of uniform scores has a beta distribution."""
    lesions, runs = 93, 4000
    misses = allowed_misses(lesions, 0.95)
    assert misses == 1
    scores = np.random.default_rng(0).uniform(size=(runs, lesions))
    true_shares = 1 - np.sort(scores, axis=1)[:, misses]
    below = float((true_shares < 0.95).mean())
    expected = float(beta.cdf(0.95, lesions - misses, misses + 1))
    assert expected <= 0.05
    assert below == pytest.approx(expected, abs=4 * math.sqrt(0.05 * 0.95 / runs))


def test_the_score_of_a_lesion_is_its_lowest_image() -> None:
    scores = np.array([0.5, 0.25, 0.75, 0.125])
    lesions = np.array(["b", "a", "b", "c"])
    assert lesion_scores(scores, lesions).tolist() == [0.25, 0.5, 0.125]


def test_a_lesion_has_a_flag_if_all_its_images_have_it() -> None:
    flags = np.array([True, False, True, True])
    assert lesions_with_all(flags, np.array(["b", "a", "b", "a"])).tolist() == [False, True]


def test_missed_melanomas_are_counted_at_every_coverage() -> None:
    scores = np.arange(10) / 10
    melanoma = np.isin(np.arange(10), [2, 3, 8])
    lesions = np.array(["a", "b", "m", "m", "c", "d", "e", "f", "n", "g"])
    rows = coverage_table(scores, melanoma, lesions, (0.1, 0.3, 0.5, 1.0))
    assert [row.coverage for row in rows] == [0.1, 0.3, 0.5, 1.0]
    assert [row.missed_lesions for row in rows] == [0, 1, 1, 2]
    assert [row.missed_images for row in rows] == [0, 1, 2, 3]
    assert [row.threshold for row in rows] == [0.1, 0.3, 0.5, math.inf]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.123456, 0.1234), (0.5, 0.5), (0.99999, 0.9999), (1.0, 1.0), (3.14159e-7, 3.141e-7)],
)
def test_rounding_goes_down_to_four_digits(value: float, expected: float) -> None:
    assert round_down(value) == expected <= value


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.123456, 0.1235), (0.5, 0.5001), (0.9999, 1.0), (1.0, 1.001), (3.14159e-7, 3.142e-7)],
)
def test_rounding_up_gives_a_larger_number_of_four_digits(value: float, expected: float) -> None:
    assert round_up(value) == expected > value

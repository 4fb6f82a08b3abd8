"""Exact bounds, the least sets that establish a share, and ties."""

import math

import numpy as np
import pytest
from scipy.stats import beta, binomtest

from training.policy.threshold import (
    allowed_misses,
    coverages,
    least_lesions,
    lesion_scores,
    lower_bound,
    rounded_down,
    share_found,
    urgent_threshold,
)


@pytest.mark.parametrize("lesions", [1, 2, 58, 59, 123])
def test_the_bound_is_the_exact_one_for_every_count(lesions: int) -> None:
    for found in range(lesions + 1):
        twin = binomtest(found, lesions, alternative="greater").proportion_ci(0.95, "exact")
        assert lower_bound(found, lesions) == pytest.approx(twin.low, abs=1e-9)


def test_59_lesions_without_a_miss_are_the_least_for_95_per_cent() -> None:
    assert lower_bound(59, 59) >= 0.95 > lower_bound(58, 58)
    assert least_lesions(0.95) == 59 == math.ceil(math.log(0.05) / math.log(0.95))
    assert (allowed_misses(58, 0.95), allowed_misses(59, 0.95)) == (None, 0)


def test_93_lesions_may_have_one_miss_and_124_two() -> None:
    assert [allowed_misses(lesions, 0.95) for lesions in (92, 93, 123, 124)] == [0, 1, 1, 2]


@pytest.mark.parametrize("wanted", [0.5, 0.8, 0.9, 0.95, 0.99])
def test_one_more_miss_than_allowed_is_too_many(wanted: float) -> None:
    least = least_lesions(wanted)
    assert allowed_misses(least - 1, wanted) is None
    for lesions in (least, least + 1, 2 * least, 500):
        misses = allowed_misses(lesions, wanted)
        assert misses is not None
        assert lower_bound(lesions - misses, lesions) >= wanted
        assert lower_bound(lesions - misses - 1, lesions) < wanted


@pytest.mark.parametrize("lesions", [10, 58, 59, 92, 93, 200])
def test_the_threshold_is_the_highest_that_establishes_or_that_misses_none(lesions: int) -> None:
    scores = np.random.default_rng(lesions).uniform(0.1, 0.9, lesions)
    threshold = urgent_threshold(scores, 0.95)
    found = share_found(scores, threshold, 0.95)
    higher = share_found(scores, float(np.min(scores[scores >= threshold])) + 1e-9, 0.95)
    assert found.established == (lesions >= 59)
    assert not higher.established
    if not found.established:
        assert found.found == lesions


def test_tied_scores_are_found_together() -> None:
    scores = np.array([0.25] * 30 + [0.5] * 100)
    threshold = urgent_threshold(scores, 0.95)
    assert share_found(scores, threshold, 0.95).found == 130


def test_a_score_that_equals_the_threshold_is_found() -> None:
    found = share_found(np.array([0.25, 0.5]), 0.25, 0.95)
    assert (found.found, found.lesions, found.share) == (2, 2, 1.0)


def test_the_bound_holds_for_a_threshold_set_on_the_same_lesions() -> None:
    """The true share above the m-th lowest of n uniform scores has the bound's distribution."""
    lesions, runs = 93, 4000
    misses = allowed_misses(lesions, 0.95)
    assert misses == 1
    scores = np.random.default_rng(0).uniform(size=(runs, lesions))
    true_shares = 1 - np.sort(scores, axis=1)[:, misses]
    below = float((true_shares < 0.95).mean())
    expected = float(beta.cdf(0.95, lesions - misses, misses + 1))
    assert expected <= 0.05
    assert below == pytest.approx(expected, abs=4 * math.sqrt(0.05 * 0.95 / runs))


def test_a_lesion_counts_with_its_lowest_image() -> None:
    scores = np.array([0.5, 0.25, 0.75, 0.125])
    lesions = np.array(["b", "a", "b", "c"])
    assert lesion_scores(scores, lesions).tolist() == [0.25, 0.5, 0.125]


def test_at_each_coverage_what_lies_below_is_counted() -> None:
    scores = np.arange(10) / 10
    melanoma = np.isin(np.arange(10), [2, 3, 8])
    lesions = np.array(["a", "b", "m", "m", "c", "d", "e", "f", "n", "g"])
    found = coverages(scores, melanoma, lesions, (0.1, 0.3, 0.5, 1.0))
    assert [each.coverage for each in found] == [0.1, 0.3, 0.5, 1.0]
    assert [each.missed_lesions for each in found] == [0, 1, 1, 2]
    assert [each.missed_images for each in found] == [0, 1, 2, 3]
    assert [each.threshold for each in found] == [0.1, 0.3, 0.5, math.inf]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(0.123456, 0.1234), (0.5, 0.5), (0.99999, 0.9999), (1.0, 1.0), (3.14159e-7, 3.141e-7)],
)
def test_rounding_goes_down_and_keeps_four_digits(value: float, wanted: float) -> None:
    assert rounded_down(value) == wanted <= value

"""Capital of bets, and the bounds that it gives, against fractions and simulations."""

import math
import random
from fractions import Fraction

import pytest
from scipy.special import logsumexp
from scipy.stats import beta, binom

from eulerlora_client.monitoring.betting import (
    STAKES,
    calibration_upper_bound,
    log_capital,
    log_mean_exp,
    sequential_lower_bound,
    sequential_upper_bound,
)


def naive_capital(events: str, probability: Fraction) -> Fraction:
    """Returns the mean over the stakes of the product of 1 + lambda (x - p), exactly."""
    capitals = []
    for stake in map(Fraction, STAKES):
        capital = Fraction(1)
        for event in events:
            capital *= 1 + stake / probability * (int(event) - probability)
        capitals.append(capital)
    return sum(capitals) / len(capitals)


@pytest.mark.parametrize("events", ["", "0", "1", "0001", "1100101"])
def test_the_capital_is_the_mean_product_of_the_bets(events: str) -> None:
    expected = naive_capital(events, Fraction(1, 5))
    capital = math.exp(log_capital(events.count("1"), len(events), 0.2))
    assert capital == pytest.approx(float(expected))


@pytest.mark.parametrize("probability", [0.01, 0.3, 0.97])
def test_the_expected_capital_is_one_at_the_tolerated_probability(probability: float) -> None:
    for trials in (1, 5, 12):
        expectation = math.fsum(
            binom.pmf(events, trials, probability)
            * math.exp(log_capital(events, trials, probability))
            for events in range(trials + 1)
        )
        assert expectation == pytest.approx(1)


def test_the_expected_capital_falls_below_the_tolerated_probability() -> None:
    expectation = math.fsum(
        binom.pmf(events, 12, 0.2) * math.exp(log_capital(events, 12, 0.3)) for events in range(13)
    )
    assert expectation < 0.9


def test_the_stakes_lie_between_zero_and_one_and_are_symmetric() -> None:
    assert 0 < STAKES[0] < STAKES[-1] < 1
    assert [1 - stake for stake in reversed(STAKES)] == pytest.approx(STAKES)


def test_the_log_of_a_mean_is_that_of_scipy_and_does_not_overflow() -> None:
    values = [-2000.0, 3.0, 2000.0, -math.inf]
    assert log_mean_exp(values) == pytest.approx(logsumexp(values) - math.log(4))
    assert log_mean_exp([-math.inf, -math.inf]) == -math.inf


def test_the_bounds_are_the_probabilities_at_which_the_capital_reaches_the_limit() -> None:
    lower = sequential_lower_bound(7, 40, 0.9)
    assert math.exp(log_capital(7, 40, lower)) == pytest.approx(10)
    upper = sequential_upper_bound(7, 40, 0.9)
    assert math.exp(log_capital(33, 40, 1 - upper)) == pytest.approx(10)
    assert lower < 7 / 40 < upper


def test_the_bounds_without_trials_are_zero_and_one() -> None:
    assert (sequential_lower_bound(0, 0, 0.95), sequential_upper_bound(0, 0, 0.95)) == (0, 1)
    assert sequential_lower_bound(0, 50, 0.95) == 0
    assert sequential_upper_bound(50, 50, 0.95) == 1


def test_a_bound_for_all_times_is_wider_than_the_exact_one_for_one_time() -> None:
    for events, trials in ((0, 62), (3, 123), (50, 100)):
        exact = beta.ppf(0.95, events + 1, trials - events)
        assert exact < sequential_upper_bound(events, trials, 0.95) < exact + 0.08


def test_the_bounds_hold_at_all_times_in_most_runs() -> None:
    random_numbers = random.Random(0)
    runs, trials, probability = 400, 200, 0.07
    violated = 0
    for _ in range(runs):
        events, holds = 0, True
        for trial in range(1, trials + 1):
            events += random_numbers.random() < probability
            # the capital at the true probability reaches 10 if and only if the bound is above it
            holds &= log_capital(events, trial, probability) < math.log(10)
        violated += not holds
    assert violated / runs <= 0.1
    assert violated > 0


def test_the_calibration_bound_covers_and_is_close_to_the_exact_one() -> None:
    for share, images in ((0.05, 1000), (0.0, 500), (0.7, 60)):
        bound = calibration_upper_bound(share, images, 0.99)
        events = round(share * images)
        assert binom.cdf(events, images, bound) <= 0.01 + 1e-12
        assert bound < beta.ppf(0.9999, events + 1, images - events)


def test_the_calibration_bound_of_a_full_share_is_one() -> None:
    assert calibration_upper_bound(1.0, 30, 0.99) == pytest.approx(1)
    assert calibration_upper_bound(0.95, 1, 0.99) <= 1

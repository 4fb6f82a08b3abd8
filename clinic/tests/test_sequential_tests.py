"""Sequential tests and bounds by bets, against fractions and simulations."""

import math
import random
from fractions import Fraction

import pytest
from scipy.special import logsumexp
from scipy.stats import beta, binom

from eulerlora_clinic.sequential_tests import (
    ChangeTest,
    calibration_upper_bound,
    log_capital,
    sequential_lower_bound,
    sequential_upper_bound,
)

STAKES = [math.sin(math.pi * (2 * index + 1) / 64) ** 2 for index in range(16)]
"""Quantiles of Beta(1/2, 1/2)."""


def naive_capital(events: str, probability: Fraction) -> Fraction:
    """The mean over the stakes of the product of 1 + lambda (x - p), exactly."""
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


def test_the_log_of_the_capital_does_not_overflow() -> None:
    logs = [
        50_000 * math.log1p(stake * 4) + 50_000 * math.log1p(-stake) for stake in STAKES
    ]  # at the probability 0.2
    assert log_capital(50_000, 100_000, 0.2) == pytest.approx(logsumexp(logs) - math.log(16))


def test_the_statistic_before_the_first_trial_is_that_of_nothing() -> None:
    assert ChangeTest().log_statistic(0) == -math.inf


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


def naive_statistic(events: list[bool], tolerated: float) -> float:
    """The mean over the stakes of M, updated at every trial."""
    sums = [0.0] * len(STAKES)
    for event in events:
        for index, stake in enumerate(STAKES):
            factor = 1 + stake / tolerated * (event - tolerated)
            sums[index] = (1 + sums[index]) * factor
    return math.fsum(sums) / len(sums)


def trials_seen(events: list[bool], tolerated: float) -> ChangeTest:
    test = ChangeTest()
    for trial, event in enumerate(events, start=1):
        if event:
            test.record(trial, 1 / tolerated)
    return test


def random_events(probability: float, trials: int, seed: int) -> list[bool]:
    random_numbers = random.Random(seed)
    return [random_numbers.random() < probability for _ in range(trials)]


@pytest.mark.parametrize("probability", [0.0, 0.05, 0.4, 1.0])
def test_skipped_trials_give_the_statistic_of_single_updates(probability: float) -> None:
    events = random_events(probability, 60, seed=1)
    for trials in (1, 17, 60):
        statistic = math.exp(trials_seen(events[:trials], 0.1).log_statistic(trials))
        assert statistic == pytest.approx(naive_statistic(events[:trials], 0.1))


def test_the_mean_statistic_is_the_number_of_trials_at_the_tolerated_probability() -> None:
    # exact: all sequences of 8 trials, with their probabilities
    probability, trials = 0.3, 8
    mean = 0.0
    for code in range(2**trials):
        events = [bool(code >> bit & 1) for bit in range(trials)]
        weight = math.prod(probability if event else 1 - probability for event in events)
        mean += weight * math.exp(trials_seen(events, probability).log_statistic(trials))
    assert mean == pytest.approx(trials)


def test_false_alarms_are_as_rare_as_stated_when_events_depend_on_each_other() -> None:
    limit, trials, runs = 1000.0, 300, 300
    alarms = 0
    for seed in range(runs):
        random_numbers, test, probability = random.Random(seed), ChangeTest(), 0.1
        for trial in range(1, trials + 1):
            event = random_numbers.random() < probability
            probability = 0.05 if event else 0.1  # never above the tolerated one
            if event:
                test.record(trial, 1 / 0.1)
                if test.log_statistic(trial) >= math.log(limit):
                    alarms += 1
                    break
    assert 0 < alarms / runs <= trials / limit


def test_a_long_quiet_time_does_not_delay_the_alarm() -> None:
    change = random_events(0.5, 200, seed=2)
    delays = []
    for quiet in (0, 100_000):
        test = ChangeTest()
        for trial, event in enumerate(change, start=1):
            if event:
                test.record(quiet + trial, 1 / 0.1)
            if test.log_statistic(quiet + trial) >= math.log(1e6):
                delays.append(trial)
                break
    assert delays[1] <= delays[0] <= 100


def test_a_shift_of_any_length_does_not_overflow() -> None:
    test = ChangeTest()
    for trial in range(1, 5001):
        test.record(trial, 1 / 0.001)
    assert 5000 < test.log_statistic(5000) < math.inf
    assert math.isfinite(test.log_statistic(10_000_000))

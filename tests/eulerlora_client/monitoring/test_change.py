"""The sequential test for a change, against its definition and simulations."""

import math
import random

import pytest

from eulerlora_client.monitoring.betting import STAKES, ChangeTest, log_add_exp


def naive_statistic(events: list[bool], tolerated: float) -> float:
    """Returns the mean over the stakes of M, updated at every trial."""
    sums = [0.0] * len(STAKES)
    for event in events:
        for index, stake in enumerate(STAKES):
            factor = 1 + stake / tolerated * (event - tolerated)
            sums[index] = (1 + sums[index]) * factor
    return math.fsum(sums) / len(sums)


def trials_seen(events: list[bool], tolerated: float) -> ChangeTest:
    """Returns a test that has seen the trials."""
    test = ChangeTest()
    for trial, event in enumerate(events, start=1):
        if event:
            test.record_event(trial, tolerated)
    return test


def random_events(probability: float, trials: int, seed: int) -> list[bool]:
    """Returns independent trials."""
    random_numbers = random.Random(seed)
    return [random_numbers.random() < probability for _ in range(trials)]


@pytest.mark.parametrize("probability", [0.0, 0.05, 0.4, 1.0])
def test_skipped_trials_give_the_statistic_of_single_updates(probability: float) -> None:
    events = random_events(probability, 60, seed=1)
    for trials in (1, 17, 60):
        statistic = math.exp(trials_seen(events[:trials], 0.1).log_statistic(trials))
        assert statistic == pytest.approx(naive_statistic(events[:trials], 0.1))


def test_the_statistic_is_zero_at_the_start() -> None:
    assert ChangeTest().log_statistic(0) == -math.inf


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
                test.record_event(trial, 0.1)
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
                test.record_event(quiet + trial, 0.1)
            if test.log_statistic(quiet + trial) >= math.log(1e6):
                delays.append(trial)
                break
    assert delays[1] <= delays[0] <= 100


def test_a_shift_of_any_length_does_not_overflow() -> None:
    test = ChangeTest()
    for trial in range(1, 5001):
        test.record_event(trial, 0.001)
    assert 5000 < test.log_statistic(5000) < math.inf
    assert math.isfinite(test.log_statistic(10_000_000))


def test_the_log_of_a_sum() -> None:
    assert log_add_exp(math.log(2), math.log(3)) == pytest.approx(math.log(5))
    assert log_add_exp(-math.inf, 1.5) == 1.5
    assert log_add_exp(-math.inf, -math.inf) == -math.inf
    assert log_add_exp(5000, 0) == 5000

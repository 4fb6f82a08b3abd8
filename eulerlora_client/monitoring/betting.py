"""Sequential tests and bounds of the probability of an event, by bets against a hypothesis.

A bettor stakes a share c of the capital on every trial, at odds that are fair if the event has
probability p. The capital multiplies by 1 + lambda (x - p) with lambda = c / p and x in {0, 1}: by
1 + c (1 - p) / p after an event and by 1 - c otherwise. Its expectation does not grow if the
probability of every trial, given the trials before, is at most p, however the trials depend on each
other (Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting, JRSS B 86,
2024). A mixture over stakes needs no knowledge of the true probability.

The stake c is optimal (Kelly) for the probability p + c (1 - p).
"""

import math
from collections.abc import Callable, Iterable

STAKE_COUNT = 16

STAKES = tuple(
    math.sin(math.pi * (2 * index + 1) / (4 * STAKE_COUNT)) ** 2 for index in range(STAKE_COUNT)
)
"""Equally likely stakes: quantiles of Beta(1/2, 1/2), dense near 0 and 1."""


def log_gain(stake: float, probability: float) -> float:
    """Returns the log of the factor after an event. probability: above 0, at most 1."""
    return math.log1p(stake * (1 - probability) / probability)


def log_loss(stake: float) -> float:
    """Returns the log of the factor after a trial without an event."""
    return math.log1p(-stake)


def log_capital(events: int, trials: int, probability: float) -> float:
    """Returns the log of the capital of the mixture over STAKES, starting with 1.

    It is an e-process for the hypothesis "at most `probability`": it ever reaches 1 / alpha with
    probability at most alpha (Ville's inequality). It decreases in `probability`.
    """
    return log_mean_exp(
        events * log_gain(stake, probability) + (trials - events) * log_loss(stake)
        for stake in STAKES
    )


def log_mean_exp(values: Iterable[float]) -> float:
    """Returns the log of the mean of exp(values), without overflow; -inf if all are -inf."""
    listed = tuple(values)
    highest = max(listed)
    if highest == -math.inf:
        return highest
    return highest + math.log(math.fsum(math.exp(v - highest) for v in listed) / len(listed))


def log_add_exp(first: float, second: float) -> float:
    """Returns log(exp(first) + exp(second)) without overflow; -inf stands for log(0)."""
    low, high = sorted((first, second))
    return high + math.log1p(math.exp(low - high)) if low > -math.inf else high


class ChangeTest:
    """The Shiryaev-Roberts sum of the bets on one event, over all possible times of the change.

    For every stake, M = (1 + M) L with M = 0 at the start and L the factor of the trial
    (`betting`); the statistic is the mean of M over the stakes. While the probability of the event
    is at most the tolerated one, M minus the number of trials does not grow on average. So the
    mean number of trials until M reaches A is at least A, and M reaches A within n trials with
    probability at most n / A (Shin, Ramdas and Rinaldo, arXiv:2203.03532, 2022). M is at least
    the sum of a start at any time: a long time without a change does not delay the alarm.

    State: a log per stake and two counters. A trial without an event costs nothing, because the sum
    over such trials has a closed form.
    """

    def __init__(self) -> None:
        self.events = 0
        self._trials = 0  # the trial up to which the sums are complete
        self._log_sums = [-math.inf] * len(STAKES)

    def record_event(self, trial: int, tolerated: float) -> None:
        """Records an event; the trials since the last event had none.

        trial: number of this trial, from 1. tolerated: its highest tolerated probability, above 0.
        """
        sums = self._after_quiet_trials(trial - 1)
        self._log_sums = [
            log_add_exp(0.0, value) + log_gain(stake, tolerated)
            for stake, value in zip(STAKES, sums, strict=True)
        ]
        self._trials = trial
        self.events += 1

    def log_statistic(self, trials: int) -> float:
        """Returns the log of the statistic after `trials` trials; -inf at the start."""
        return log_mean_exp(self._after_quiet_trials(trials))

    def _after_quiet_trials(self, trials: int) -> list[float]:
        """Returns the logs of M r^n + r (1 - r^n) / (1 - r), with r = 1 - stake."""
        quiet = trials - self._trials
        if quiet == 0:
            return self._log_sums
        return [
            log_add_exp(
                value + quiet * log_loss(stake),
                log_loss(stake) + math.log(-math.expm1(quiet * log_loss(stake)) / stake),
            )
            for stake, value in zip(STAKES, self._log_sums, strict=True)
        ]


HALVINGS = 50  # of the interval [0, 1]


def sequential_lower_bound(events: int, trials: int, confidence: float) -> float:
    """Returns a lower bound that holds after every number of trials at once.

    It is the highest probability that the bets of `log_capital` reject: with probability
    `confidence`, the bounds of all times stay at or below the true probability, or below its
    highest value if it varies. confidence: 0 to 1, exclusive. Source: `betting`.
    """
    if events == 0:
        return 0.0
    limit = -math.log1p(-confidence)
    return _last_true(lambda p: log_capital(events, trials, p) >= limit)


def sequential_upper_bound(events: int, trials: int, confidence: float) -> float:
    """Returns the upper bound that corresponds to `sequential_lower_bound`."""
    return 1 - sequential_lower_bound(trials - events, trials, confidence)


def calibration_upper_bound(share: float, trials: int, confidence: float) -> float:
    """Returns an upper bound of a probability from the share of a fixed number of trials.

    The share of n independent trials is at most s with a probability of at most exp(-n KL(s, p))
    for p > s, with the divergence KL of Bernoulli distributions (Chernoff 1952; Hoeffding 1963).
    The bound is the p for which this equals 1 - confidence.
    """
    limit = -math.log1p(-confidence) / trials
    return _last_true(lambda p: p <= share or _divergence(share, p) <= limit)


def _last_true(condition: Callable[[float], bool]) -> float:
    """Returns the highest p in [0, 1] with a true condition that is true below some p."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if condition(middle) else (low, middle)
    return low


def _divergence(share: float, probability: float) -> float:
    """Returns KL(Bernoulli(share), Bernoulli(probability)) for a probability in (share, 1)."""
    occurs = share * math.log(share / probability) if share > 0 else 0.0
    absent = (1 - share) * math.log((1 - share) / (1 - probability))
    return occurs + absent

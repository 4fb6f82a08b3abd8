"""Sequential tests and bounds of the probability of an event, by bets against a hypothesis.

A bettor stakes a share c of the capital on every trial, at odds that are fair if the event has
probability p. The capital multiplies by 1 - c + c x / p with x in [0, 1], the share of a trial's
pictures that show the event. Its expectation does not grow if that of x, given the trials before,
is at most p (Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting, JRSS
B 86, 2024). A mixture over stakes needs no knowledge of the true probability. The stake c is
optimal (Kelly) for the probability p + c (1 - p).

The contract: events and trials go in, and logs of capitals, bounds in [0, 1] or the statistic of a
change come out. A bound holds after all numbers of trials at once with its confidence; that of a
calibration holds for one number of trials. Events may depend on earlier ones.
"""

import math
from collections.abc import Callable, Iterable

__all__ = [
    "ChangeTest", "calibration_upper_bound", "log_capital", "sequential_lower_bound",
    "sequential_upper_bound",
]  # fmt: skip

_STAKE_COUNT = 16

_STAKES = tuple(
    math.sin(math.pi * (2 * index + 1) / (4 * _STAKE_COUNT)) ** 2 for index in range(_STAKE_COUNT)
)
"""Equally likely stakes: quantiles of Beta(1/2, 1/2), dense near 0 and 1."""


def _log_gain(stake: float, probability: float) -> float:
    """The log of the factor after an event of `probability`, above 0, for a stake of 0 to 1."""
    return math.log1p(stake * (1 - probability) / probability)


def _log_loss(stake: float) -> float:
    """The log of the factor after a trial without an event."""
    return math.log1p(-stake)


def log_capital(events: int, trials: int, probability: float) -> float:
    """The log of the capital of the mixture over _STAKES, starting with 1.

    It is an e-process for the hypothesis "at most `probability`": it ever reaches 1 / alpha with
    probability at most alpha (Ville's inequality). It decreases in `probability`.
    """
    return _log_mean_exp(
        events * _log_gain(stake, probability) + (trials - events) * _log_loss(stake)
        for stake in _STAKES
    )


def _log_mean_exp(values: Iterable[float]) -> float:
    """The log of the mean of exp(values), without overflow; -inf if all are -inf."""
    listed = tuple(values)
    highest = max(listed)
    if highest == -math.inf:
        return highest
    return highest + math.log(math.fsum(math.exp(v - highest) for v in listed) / len(listed))


def _log_add_exp(first: float, second: float) -> float:
    """log(exp(first) + exp(second)) without overflow; -inf stands for log(0)."""
    low, high = sorted((first, second))
    return high + math.log1p(math.exp(low - high)) if low > -math.inf else high


class ChangeTest:
    """The Shiryaev-Roberts sum of the bets on one event, over all possible times of the change.

    For every stake, M = (1 + M) L with M = 0 at the start and L the factor of the trial;
    the statistic is the mean of M over the stakes. While the probability of the event
    is at most the tolerated one, M minus the number of trials does not grow on average. So the
    mean number of trials until M reaches A is at least A, and M reaches A within n trials with
    probability at most n / A (Shin, Ramdas and Rinaldo, arXiv:2203.03532, 2022). M is at least
    the sum of a start at any time: a long time without a change does not delay the alarm.

    State: a log per stake and a counter. A trial without an event costs nothing, because the sum
    over such trials has a closed form.
    """

    def __init__(self) -> None:
        self._trials = 0  # the trial up to which the sums are complete
        self._log_sums = [-math.inf] * len(_STAKES)

    def record(self, trial: int, ratio: float) -> None:
        """Records a trial with events, counted from 1; the trials since the last one had none.

        `ratio`, above 0: the share of its pictures with the event over the highest tolerated one.
        """
        sums = self._after_quiet_trials(trial - 1)
        self._log_sums = [
            _log_add_exp(0.0, value) + math.log1p(stake * (ratio - 1))
            for stake, value in zip(_STAKES, sums, strict=True)
        ]
        self._trials = trial

    def log_statistic(self, trials: int) -> float:
        """The log of the statistic after `trials` trials; -inf at the start."""
        return _log_mean_exp(self._after_quiet_trials(trials))

    def _after_quiet_trials(self, trials: int) -> list[float]:
        """The logs of M r^n + r (1 - r^n) / (1 - r), with r = 1 - stake."""
        quiet = trials - self._trials
        if quiet == 0:
            return self._log_sums
        return [
            _log_add_exp(
                value + quiet * _log_loss(stake),
                _log_loss(stake) + math.log(-math.expm1(quiet * _log_loss(stake)) / stake),
            )
            for stake, value in zip(_STAKES, self._log_sums, strict=True)
        ]


_HALVINGS = 50  # of the interval [0, 1]


def sequential_lower_bound(events: int, trials: int, confidence: float) -> float:
    """A lower bound that holds after every number of trials at once.

    It is the highest probability that the bets of `log_capital` reject: with probability
    `confidence`, in (0, 1), the bounds of all times stay at or below the true probability, or below
    its highest value if it varies.
    """
    if events == 0:
        return 0.0
    limit = -math.log1p(-confidence)
    return _last_true(lambda p: log_capital(events, trials, p) >= limit)


def sequential_upper_bound(events: int, trials: int, confidence: float) -> float:
    """The upper bound that corresponds to `sequential_lower_bound`."""
    return 1 - sequential_lower_bound(trials - events, trials, confidence)


def calibration_upper_bound(share: float, trials: int, confidence: float) -> float:
    """An upper bound of a probability from the share of a fixed number of trials.

    The share of n independent trials is at most s with a probability of at most exp(-n KL(s, p))
    for p > s, with the divergence KL of Bernoulli distributions (Chernoff 1952; Hoeffding 1963).
    The bound is the p for which this equals 1 - confidence.
    """
    limit = -math.log1p(-confidence) / trials

    def divergence(p: float) -> float:
        occurs = share * math.log(share / p) if share > 0 else 0.0
        return occurs + (1 - share) * math.log((1 - share) / (1 - p))

    return _last_true(lambda p: p <= share or divergence(p) <= limit)


def _last_true(condition: Callable[[float], bool]) -> float:
    """The highest p in [0, 1] with a true condition that is true below some p."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if condition(middle) else (low, middle)
    return low

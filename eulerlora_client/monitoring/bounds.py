"""Bounds of the probability of an event."""

import math
from collections.abc import Callable

from eulerlora_client.monitoring.betting import log_capital

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

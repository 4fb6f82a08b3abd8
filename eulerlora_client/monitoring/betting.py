"""Bets against the hypothesis that an event occurs with at most a given probability.

A bettor stakes a share c of the capital on every trial, at odds that are fair if the event has
probability p. The capital multiplies by 1 + lambda (x - p) with lambda = c / p and x in {0, 1}: by
1 + c (1 - p) / p after an event and by 1 - c otherwise. Its expectation does not grow if the
probability of every trial, given the trials before, is at most p, however the trials depend on each
other (Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting, JRSS B 86,
2024). A mixture over stakes needs no knowledge of the true probability.

The stake c is optimal (Kelly) for the probability p + c (1 - p).
"""

import math
from collections.abc import Iterable

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

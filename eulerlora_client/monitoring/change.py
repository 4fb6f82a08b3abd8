"""A sequential test for a change after which an event is more likely than tolerated."""

import math

from eulerlora_client.monitoring.betting import STAKES, log_gain, log_loss, log_mean_exp


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


def log_add_exp(first: float, second: float) -> float:
    """Returns log(exp(first) + exp(second)) without overflow; -inf stands for log(0)."""
    low, high = sorted((first, second))
    return high + math.log1p(math.exp(low - high)) if low > -math.inf else high

"""The shift monitor: are the pictures of now like those that the thresholds were checked on?"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from eulerlora_client.monitoring.betting import ChangeTest, calibration_upper_bound, log_add_exp

PICTURES_PER_FALSE_ALARM = 1_000_000
"""Mean number of pictures to an alarm without a shift, at least."""

CALIBRATION_CONFIDENCE = 0.99
TOLERATED_ODDS_RATIO = 1.25


@dataclass(frozen=True)
class EventRate:
    """The probability of an event among calibration pictures, and the highest tolerated one."""

    expected: float
    tolerated: float

    @classmethod
    def calibrated(cls, share: float, images: int) -> Self:
        """Returns the rate for an event that a share of the calibration images shows.

        The tolerated odds are 1.25 times those of the 99% upper bound of the share: a smaller shift
        does not matter, and calibration images are few.
        """
        bound = calibration_upper_bound(share, images, CALIBRATION_CONFIDENCE)
        raised = TOLERATED_ODDS_RATIO * bound
        return cls(share, raised / (raised + 1 - bound))


@dataclass(frozen=True)
class SignalState:
    """The state of one signal.

    event: index of the event with the most evidence. pictures: with this signal. rate: share of
    them with the event. expected, tolerated: its rates, for the options of the last picture.
    evidence: log10(1 + M / N) with the statistic M of `ChangeTest` and the N events of the signal.
    alarm: the evidence has reached its limit at some time.
    """

    name: str
    event: int
    pictures: int
    rate: float
    expected: float
    tolerated: float
    evidence: float
    alarm: bool


class Signal:
    """A sequence of pictures, each of which shows at most one of several events."""

    def __init__(self, name: str, rates: Sequence[EventRate], log_limit: float) -> None:
        self._name = name
        self._rates = rates
        self._log_limit = log_limit
        self._tests = [ChangeTest() for _ in rates]
        self._pictures = 0
        self.alarm = False

    def record(self, event: int | None, rates: Sequence[EventRate]) -> None:
        """Records a picture. event: index of its event, None without; rates: of all events."""
        self._pictures += 1
        self._rates = rates
        if event is not None:
            test = self._tests[event]
            test.record_event(self._pictures, rates[event].tolerated)
            self.alarm |= self._log_evidence(test) >= self._log_limit

    def state(self) -> SignalState:
        """Returns the current state."""
        evidence = [self._log_evidence(test) for test in self._tests]
        event = evidence.index(max(evidence))
        rate = self._rates[event]
        return SignalState(
            name=self._name,
            event=event,
            pictures=self._pictures,
            rate=self._tests[event].events / max(self._pictures, 1),
            expected=rate.expected,
            tolerated=rate.tolerated,
            evidence=log_add_exp(0.0, evidence[event]) / math.log(10),
            alarm=self.alarm,
        )

    def _log_evidence(self, test: ChangeTest) -> float:
        return test.log_statistic(self._pictures) - math.log(len(self._tests))


class ShiftMonitor:
    """Tests several signals of a stream of pictures for a shift; stores nothing per picture.

    Every event has a `ChangeTest`. An alarm needs a statistic of PICTURES_PER_FALSE_ALARM times
    the number of tests (Bonferroni), weighted so that all signals count alike. An alarm stays on.

    signals: the rates of the events of each signal, by name, for the usual options.
    """

    def __init__(self, signals: Mapping[str, Sequence[EventRate]]) -> None:
        self.pictures = 0
        limit = PICTURES_PER_FALSE_ALARM * len(signals)
        self.limit = math.log10(limit + 1)
        self._signals = {
            name: Signal(name, rates, math.log(limit)) for name, rates in signals.items()
        }

    @property
    def alarm(self) -> bool:
        """True if a signal has an alarm."""
        return any(signal.alarm for signal in self._signals.values())

    def record(
        self, events: Mapping[str, int | None], rates: Mapping[str, Sequence[EventRate]]
    ) -> None:
        """Records a picture.

        events: the index of its event for each signal that could be computed, None without an
        event. rates: the rates of all events of these signals, for the options of this picture.
        """
        self.pictures += 1
        for name, event in events.items():
            self._signals[name].record(event, rates[name])

    def states(self) -> tuple[SignalState, ...]:
        """Returns the state of every signal."""
        return tuple(signal.state() for signal in self._signals.values())

"""Waits between attempts, and the end of retries."""

from threading import Event

import pytest

from eulerlora_client.contract.problems import (
    ConnectionLost,
    Overloaded,
    Problem,
    QuotaExceeded,
    TimedOut,
    Unreachable,
)
from eulerlora_client.sdk.requests import RetryPolicy, retrying


class RecordedWaits(Event):
    """Records the requested waits without waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.timeouts_s.append(timeout)
        return self.is_set()


def waits_s(*problems: Problem, retry: RetryPolicy) -> list[float]:
    """Returns the waits between attempts that raise these problems, until one succeeds."""
    remaining, waits = list(problems), RecordedWaits()

    def attempt() -> None:
        if remaining:
            raise remaining.pop(0)

    retrying(retry, waits)(attempt)
    return waits.timeouts_s


HOUR = RetryPolicy(service_s=3600, quota_s=3600)


def test_the_wait_is_retry_after_with_a_short_jitter() -> None:
    waits = waits_s(
        QuotaExceeded("", retry_after_s=20), Overloaded("", retry_after_s=2), retry=HOUR
    )
    assert 20 <= waits[0] <= 20.5
    assert 2 <= waits[1] <= 2.5


def test_without_retry_after_waits_grow_up_to_a_limit() -> None:
    waits = waits_s(*[Unreachable("")] * 40, retry=HOUR)
    for attempt, wait in enumerate(waits):
        assert 0 <= wait <= min(5, 0.25 * 2**attempt)
    assert max(waits) > 0.5


def test_a_quota_has_a_limit_of_its_own() -> None:
    policy = RetryPolicy(service_s=1, quota_s=100)
    assert len(waits_s(QuotaExceeded("", retry_after_s=50), retry=policy)) == 1
    with pytest.raises(Overloaded):
        waits_s(Overloaded("", retry_after_s=50), retry=policy)


def test_a_lost_connection_is_retried_and_a_timeout_is_not() -> None:
    assert len(waits_s(ConnectionLost(""), retry=HOUR)) == 1
    with pytest.raises(TimedOut):
        waits_s(TimedOut(""), retry=HOUR)


def test_after_cancellation_the_last_problem_is_raised() -> None:
    cancelled, attempts = Event(), []

    def attempt() -> None:
        attempts.append(len(attempts))
        cancelled.set()
        raise Overloaded("", retry_after_s=1000)

    with pytest.raises(Overloaded):
        retrying(RetryPolicy(service_s=10_000), cancelled)(attempt)
    assert attempts == [0]

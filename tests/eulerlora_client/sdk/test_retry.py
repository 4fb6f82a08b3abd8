"""How long the client waits between attempts, and when it gives up."""

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
from eulerlora_client.sdk.retry import RetryPolicy, retrying


class Waits(Event):
    """Waits for nothing, and remembers for how long it should have."""

    def __init__(self) -> None:
        super().__init__()
        self.told_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.told_s.append(timeout)
        return self.is_set()


def waits_s(*problems: Problem, retry: RetryPolicy) -> list[float]:
    """How long it waited between attempts that met these problems, until one met none."""
    left, waits = list(problems), Waits()

    def attempt() -> None:
        if left:
            raise left.pop(0)

    retrying(retry, waits)(attempt)
    return waits.told_s


HOUR = RetryPolicy(service_s=3600, quota_s=3600)


def test_retry_after_is_waited_for_and_hardly_longer() -> None:
    found = waits_s(
        QuotaExceeded("", retry_after_s=20), Overloaded("", retry_after_s=2), retry=HOUR
    )
    assert 20 <= found[0] <= 20.5
    assert 2 <= found[1] <= 2.5


def test_without_retry_after_waits_grow_up_to_a_bound() -> None:
    found = waits_s(*[Unreachable("")] * 40, retry=HOUR)
    for attempt, wait in enumerate(found):
        assert 0 <= wait <= min(5, 0.25 * 2**attempt)
    assert max(found) > 0.5


def test_a_quota_has_a_patience_of_its_own() -> None:
    policy = RetryPolicy(service_s=1, quota_s=100)
    assert len(waits_s(QuotaExceeded("", retry_after_s=50), retry=policy)) == 1
    with pytest.raises(Overloaded):
        waits_s(Overloaded("", retry_after_s=50), retry=policy)


def test_a_lost_connection_may_pass_a_timeout_does_not() -> None:
    assert len(waits_s(ConnectionLost(""), retry=HOUR)) == 1
    with pytest.raises(TimedOut):
        waits_s(TimedOut(""), retry=HOUR)


def test_the_last_problem_is_raised_once_given_up() -> None:
    given_up, attempts = Event(), []

    def attempt() -> None:
        attempts.append(len(attempts))
        given_up.set()
        raise Overloaded("", retry_after_s=1000)

    with pytest.raises(Overloaded):
        retrying(RetryPolicy(service_s=10_000), given_up)(attempt)
    assert attempts == [0]

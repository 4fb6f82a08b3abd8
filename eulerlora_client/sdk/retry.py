"""How long the client waits, and which questions it repeats.

A prediction may be asked for again at no harm: it changes nothing, and its seed comes from the
image, so that the repeated question has the same answer.
"""

from collections.abc import Callable
from threading import Event
from typing import Annotated

from pydantic import Field
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_when_event_set,
    wait_random,
    wait_random_exponential,
)

from eulerlora.settings import Settings
from eulerlora_client.contract.problems import (
    ConnectionLost,
    Problem,
    QuotaExceeded,
    Unreachable,
)

Seconds = Annotated[float, Field(gt=0)]
PatienceSeconds = Annotated[float, Field(ge=0)]

PASSING = (429, 503, 504)
"""Statuses after which the same request may be answered."""

BACKOFF = wait_random_exponential(multiplier=0.25, max=5)
AFTER_WHAT_WAS_SAID = wait_random(0, 0.5)  # others were told the same time


class Timeouts(Settings):
    """Seconds without progress after which one attempt ends.

    connect_s: until there is a connection. read_s, write_s: between two pieces of the answer, or
    of the question.
    """

    connect_s: Seconds = 5
    read_s: Seconds = 60
    write_s: Seconds = 60


class Patience(Settings):
    """Seconds, from a question's first attempt, within which it is repeated; 0 for never.

    service_s: after a connection that was refused or lost, and after 503 and 504. quota_s: after
    429. Waits for as long as Retry-After says, and not at all where that would be too long.
    """

    service_s: PatienceSeconds = 30
    quota_s: PatienceSeconds = 120


def repeating(patience: Patience, given_up: Event) -> Retrying:
    """Repeats a call until it has an answer; `given_up` ends its waits at once."""
    return Retrying(
        retry=retry_if_exception(may_pass),
        wait=wait_s,
        stop=lambda state: stop_when_event_set(given_up)(state) or _too_long(patience)(state),
        sleep=sleep_using_event(given_up),
        reraise=True,
    )


def repeating_async(patience: Patience) -> AsyncRetrying:
    """The same for a coroutine, whose waits end with its task."""
    return AsyncRetrying(
        retry=retry_if_exception(may_pass), wait=wait_s, stop=_too_long(patience), reraise=True
    )


def may_pass(error: BaseException) -> bool:
    """Whether the same question may have an answer a little later."""
    return isinstance(error, (Unreachable, ConnectionLost)) or (
        isinstance(error, Problem) and error.status in PASSING
    )


def wait_s(state: RetryCallState) -> float:
    """Seconds to the next attempt: what Retry-After said, or longer with each one."""
    problem = _problem(state)
    if problem.retry_after_s is None:
        return BACKOFF(state)
    return problem.retry_after_s + AFTER_WHAT_WAS_SAID(state)


def _too_long(patience: Patience) -> Callable[[RetryCallState], bool]:
    def too_long(state: RetryCallState) -> bool:
        of_quota = isinstance(_problem(state), QuotaExceeded)
        most_s = patience.quota_s if of_quota else patience.service_s
        return (state.seconds_since_start or 0) + state.upcoming_sleep > most_s

    return too_long


def _problem(state: RetryCallState) -> Problem:
    assert state.outcome is not None
    problem = state.outcome.exception()
    assert isinstance(problem, Problem)
    return problem

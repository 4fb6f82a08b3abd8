"""Timeouts, and the policy by which requests are retried.

Retrying a prediction has no side effects, and its seed is derived from the image, so that a
repeated request has the same result.
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

from eulerlora_client.contract.problems import (
    ConnectionLost,
    Problem,
    QuotaExceeded,
    Unreachable,
)
from eulerlora_client.settings import Settings

Seconds = Annotated[float, Field(gt=0)]
RetrySeconds = Annotated[float, Field(ge=0)]

RETRYABLE_STATUSES = (429, 503, 504)

BACKOFF = wait_random_exponential(multiplier=0.25, max=5)
JITTER = wait_random(0, 0.5)  # clients that got the same Retry-After spread their attempts


class Timeouts(Settings):
    """Timeouts of one attempt, in seconds.

    connect_s: to make a connection. read_s, write_s: without progress of the response or of the
    request.
    """

    connect_s: Seconds = 5
    read_s: Seconds = 60
    write_s: Seconds = 60


class RetryPolicy(Settings):
    """Seconds since the first attempt within which a request is retried; 0 disables retries.

    service_s: after a refused or lost connection, and after status 503 and 504. quota_s: after
    status 429. Retry-After is respected; a wait that would exceed the limit is not started.
    """

    service_s: RetrySeconds = 30
    quota_s: RetrySeconds = 120


def retrying(policy: RetryPolicy, cancelled: Event) -> Retrying:
    """Returns a caller that retries a function; setting `cancelled` ends its waits at once."""
    return Retrying(
        retry=retry_if_exception(is_retryable),
        wait=wait_s,
        stop=lambda state: stop_when_event_set(cancelled)(state) or _exceeds(policy)(state),
        sleep=sleep_using_event(cancelled),
        reraise=True,
    )


def retrying_async(policy: RetryPolicy) -> AsyncRetrying:
    """Returns a caller that retries a coroutine function; waits end when their task ends."""
    return AsyncRetrying(
        retry=retry_if_exception(is_retryable), wait=wait_s, stop=_exceeds(policy), reraise=True
    )


def is_retryable(error: BaseException) -> bool:
    """Returns True if the same request may succeed later."""
    return isinstance(error, (Unreachable, ConnectionLost)) or (
        isinstance(error, Problem) and error.status in RETRYABLE_STATUSES
    )


def wait_s(state: RetryCallState) -> float:
    """Returns the seconds to the next attempt: Retry-After, or an exponential backoff."""
    problem = _problem(state)
    if problem.retry_after_s is None:
        return BACKOFF(state)
    return problem.retry_after_s + JITTER(state)


def _exceeds(policy: RetryPolicy) -> Callable[[RetryCallState], bool]:
    def exceeds(state: RetryCallState) -> bool:
        is_quota = isinstance(_problem(state), QuotaExceeded)
        limit_s = policy.quota_s if is_quota else policy.service_s
        return (state.seconds_since_start or 0) + state.upcoming_sleep > limit_s

    return exceeds


def _problem(state: RetryCallState) -> Problem:
    assert state.outcome is not None
    problem = state.outcome.exception()
    assert isinstance(problem, Problem)
    return problem

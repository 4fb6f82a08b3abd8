"""When a failed request is repeated, and how long to wait before.

A refused or lost connection and the statuses 429, 503 and 504 are worth another attempt; a timeout
is not, since the service may be at work. The wait is Retry-After with a short jitter, or an
exponential backoff. An attempt whose wait would exceed the limit of the policy is not made.
"""

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    wait_random,
    wait_random_exponential,
)

from eulerlora_contract.problems import ConnectionLost, Problem, QuotaExceeded, Unreachable
from eulerlora_contract.settings import NotNegative, Settings

__all__ = ["RetryPolicy", "retrying"]

_RETRYABLE_STATUSES = (429, 503, 504)
_BACKOFF = wait_random_exponential(multiplier=0.25, max=5)
_JITTER = wait_random(0, 0.5)  # clients that got the same Retry-After spread their attempts


class RetryPolicy(Settings):
    """Seconds since the first attempt within which a request is retried; 0 disables retries.

    Attributes:
        service_s: After a refused or lost connection, and after status 503 and 504.
        quota_s: After status 429. Retry-After is respected; a wait that would exceed the limit is
            not started.
    """

    service_s: NotNegative = 30
    quota_s: NotNegative = 120


def retrying(policy: RetryPolicy) -> AsyncRetrying:
    """Retries a coroutine function; waits end when their task ends."""

    def is_retryable(error: BaseException) -> bool:
        return isinstance(error, (Unreachable, ConnectionLost)) or (
            isinstance(error, Problem) and error.status in _RETRYABLE_STATUSES
        )

    def exceeds(state: RetryCallState) -> bool:
        is_quota = isinstance(_problem(state), QuotaExceeded)
        limit_s = policy.quota_s if is_quota else policy.service_s
        return (state.seconds_since_start or 0) + state.upcoming_sleep > limit_s

    return AsyncRetrying(
        retry=retry_if_exception(is_retryable), wait=_wait_s, stop=exceeds, reraise=True
    )


def _wait_s(state: RetryCallState) -> float:
    """Seconds to the next attempt: Retry-After, or an exponential backoff."""
    problem = _problem(state)
    if problem.retry_after_s is None:
        return _BACKOFF(state)
    return problem.retry_after_s + _JITTER(state)


def _problem(state: RetryCallState) -> Problem:
    assert state.outcome is not None
    problem = state.outcome.exception()
    assert isinstance(problem, Problem)
    return problem

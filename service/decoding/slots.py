"""The order in which images get one of the decoders, and the decoding time of every client."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from eulerlora_contract.problems import QuotaExceeded
from service.fair_sharing import FairQueue, RecentClients, SharedCapacity

MINUTE_S = 60.0

SHORT_S = 0.05
"""Estimated decoding time up to which an image may take the last free decoder."""

Result = TypeVar("Result")
Charge = Callable[[float], None]
"""Reports the CPU seconds of an attempt to decode an image."""


@dataclass(frozen=True)
class _Balance:
    """CPU seconds that a client could use at a time; negative after an expensive image."""

    seconds: float
    at_s: float


class DecodingQuota:
    """A token bucket of CPU seconds for every client, for the images that it sends.

    Args:
        seconds_per_minute: The size of the bucket, which refills in a minute. A decode is charged
            when it ends, whatever its result; a client in debt waits until the debt is refilled.
        now: A clock in seconds that never goes back. For use in one event loop.
    """

    def __init__(
        self, seconds_per_minute: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._capacity_s = seconds_per_minute
        self._rate = seconds_per_minute / MINUTE_S
        self._now = now
        self._balances: dict[str, _Balance] = {}  # of clients below the capacity

    def check(self, client: str) -> None:
        """Raises QuotaExceeded if the client has used up its quota."""
        seconds = self._seconds(client)
        if seconds <= 0:
            raise QuotaExceeded(
                f"at most {self._capacity_s:g} s of image decoding a minute",
                retry_after_s=-seconds / self._rate,
            )

    def charge(self, client: str, cpu_s: float) -> None:
        """Subtracts the CPU time of a decode."""
        self._balances[client] = _Balance(self._seconds(client) - cpu_s, self._now())

    def _seconds(self, client: str) -> float:
        """Returns the seconds that a client may use now; forgets a client with a full bucket."""
        balance = self._balances.get(client)
        if balance is None:
            return self._capacity_s
        seconds = balance.seconds + (self._now() - balance.at_s) * self._rate
        if seconds < self._capacity_s:
            return seconds
        del self._balances[client]
        return self._capacity_s


@dataclass(eq=False)
class _Job:
    """An image.

    Attributes:
        cost: Estimated CPU seconds.
        granted: Done when a decoder is free for it.
    """

    client: str
    cost: float
    queued_at: float
    granted: "asyncio.Future[None]" = field(default_factory=asyncio.Future)


class DecodingSlots:
    """Grants the decoders to images in fair order; for use in one event loop.

    Args:
        slots: The number of decoders. With several, the last free one takes only short images, and
            none of a client that uses all others while other clients are active. So a short image
            of another client does not wait for long ones.
        quota: Charged with the time of every decode.
        now: A clock in seconds.
    """

    def __init__(
        self, slots: int, quota: DecodingQuota, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._slots = slots
        self._quota = quota
        self._now = now
        self._queue: FairQueue[_Job] = FairQueue()
        self._seconds = SharedCapacity(float("inf"))  # of waiting and running images
        self._running: set[_Job] = set()
        self._recent = RecentClients(now)

    def wait_s(self, client: str, estimated_s: float) -> float:
        """Returns the estimated seconds until more images of a request are decoded.

        `estimated_s` is their CPU time in seconds. The result is 0 if no other image waits or is
        decoded.
        """
        if not self._seconds.total:
            return 0.0
        return self._seconds.finish_work(client, estimated_s) / self._slots

    async def run(
        self,
        client: str,
        estimated_s: float,
        decode: Callable[[Charge], Coroutine[Any, Any, Result]],
    ) -> Result:
        """Returns the result of `decode` for an image, which starts when a decoder is granted.

        If the caller is cancelled, an image that has started keeps its decoder until it ends.

        Args:
            client: Whose share of the decoders and quota is used.
            estimated_s: The expected CPU seconds.
            decode: Gets the `Charge` of the image.

        Raises:
            QuotaExceeded: If the client has used up its quota by then.
        """
        job = _Job(client, estimated_s, self._now())
        self._recent.note(client)
        self._seconds.add(client, estimated_s)
        self._queue.add(job)
        try:
            self._grant()
            await job.granted
            self._quota.check(client)
            decoding = asyncio.ensure_future(decode(self._charge_of(job)))
        except BaseException:
            self._release(job)
            raise
        decoding.add_done_callback(partial(self._on_end, job))
        return await asyncio.shield(decoding)

    def _charge_of(self, job: _Job) -> Charge:
        """Returns the function that charges the time of a job; the estimate is charged already."""
        charged_s = job.cost

        def charge(cpu_s: float) -> None:
            nonlocal charged_s
            self._quota.charge(job.client, cpu_s)
            self._queue.charge(job.client, cpu_s - charged_s)
            charged_s = 0.0

        return charge

    def _on_end(self, job: _Job, decoding: "asyncio.Future[Any]") -> None:
        if not decoding.cancelled():
            decoding.exception()  # marks it as seen, for a caller that has left
        self._release(job)

    def _release(self, job: _Job) -> None:
        self._queue.remove(job)
        self._running.discard(job)
        self._seconds.add(job.client, -job.cost)
        self._grant()

    def _grant(self) -> None:
        while len(self._running) < self._slots:
            running = [{job.client} for job in self._running]
            is_last = len(running) == self._slots - 1 > 0
            job = self._queue.first(
                partial(self._recent.may_start, workers=self._slots, running=running),
                lambda job: not is_last or job.cost <= SHORT_S,  # noqa: B023 - called at once
            )
            if job is None:
                return
            self._queue.take(job)
            if not job.granted.done():  # otherwise its caller was cancelled
                self._running.add(job)
                job.granted.set_result(None)

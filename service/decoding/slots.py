"""The order in which images get one of the decoders."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from service.fair_sharing import ClientQuota, FairQueue, RecentClients, SharedCapacity

_SHORT_S = 0.05
"""Estimated decoding time up to which an image counts as short."""

_Result = TypeVar("_Result")
_Charge = Callable[[float], None]
"""Reports the CPU seconds of an attempt to decode an image."""
_Decode = Callable[[_Charge], Coroutine[Any, Any, _Result]]


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
        slots: The number of decoders. With several, one of them takes short images only; and while
            other clients are active, a client gets all but one.
        quota: Of CPU seconds; a decode is charged when it ends, whatever its result.
        now: A clock in seconds.
    """

    def __init__(
        self,
        slots: int,
        quota: ClientQuota,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = slots
        self._quota = quota
        self._now = now
        self._queue: FairQueue[_Job] = FairQueue()
        self._seconds = SharedCapacity(float("inf"))  # of waiting and running images
        self._running: set[_Job] = set()
        self._recent = RecentClients(now)

    def wait_s(self, client: str, estimated_s: float) -> float:
        """The estimated seconds until more images of a request are decoded.

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
        decode: _Decode[_Result],
    ) -> _Result:
        """Runs `decode` for an image, once a decoder is granted.

        If the caller is cancelled, an image that has started keeps its decoder until it ends.

        Args:
            client: Whose share of the decoders and quota is used.
            estimated_s: The expected CPU seconds.
            decode: Gets the `_Charge` of the image.

        Raises:
            QuotaExceeded: If the client has used up its quota by then.
        """
        job = _Job(client, estimated_s, self._now())
        self._recent.note(client)
        self._seconds.add(client, estimated_s)
        self._queue.add(job)
        charged_s = job.cost  # by the fair queue already

        def charge(cpu_s: float) -> None:
            nonlocal charged_s
            self._quota.charge(client, cpu_s)
            self._queue.charge(client, cpu_s - charged_s)
            charged_s = 0.0

        try:
            self._grant()
            await job.granted
            self._quota.check(client)
            decoding = asyncio.ensure_future(decode(charge))
        except BaseException:
            self._release(job)
            raise
        decoding.add_done_callback(partial(self._on_end, job))
        return await asyncio.shield(decoding)

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
        while self._has_free and (job := self._queue.first(is_allowed=self._is_allowed)):
            self._queue.take(job)
            if not job.granted.done():  # otherwise its caller was cancelled
                self._running.add(job)
                job.granted.set_result(None)

    @property
    def _has_free(self) -> bool:
        return len(self._running) < self._slots

    def _is_allowed(self, job: _Job) -> bool:
        long = sum(other.cost > _SHORT_S for other in self._running)
        if job.cost > _SHORT_S and long == max(1, self._slots - 1):
            return False
        running = [{other.client} for other in self._running]
        return self._recent.may_start(job.client, self._slots, running)

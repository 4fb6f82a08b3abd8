"""The order in which images get one of the decoders."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from service.scheduling.clients import Flow
from service.scheduling.decoding_quota import DecodingQuota
from service.scheduling.fair_queue import FairQueue
from service.scheduling.recent_clients import RecentClients
from service.scheduling.shared_capacity import SharedCapacity

Result = TypeVar("Result")
Charge = Callable[[float], None]

SHORT_S = 0.05
"""Estimated decoding time up to which an image may take the last free decoder."""


@dataclass(eq=False)
class _Job:
    """An image. cost: estimated CPU seconds. granted: done when a decoder is free for it."""

    flow: Flow
    cost: float
    queued_at: float
    granted: "asyncio.Future[None]" = field(default_factory=asyncio.Future)


class DecodingSlots:
    """Grants the decoders to images in fair order; for use in one event loop.

    slots: the number of decoders. With several, the last free one takes only short images, and
    none of a client that uses all others while other clients are active. So a short image of
    another client does not wait for long ones. quota: charged with the time of every decode.
    now: a clock in seconds.
    """

    def __init__(
        self, slots: int, quota: DecodingQuota, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._slots = slots
        self._quota = quota
        self._now = now
        self._queue: FairQueue[_Job] = FairQueue()
        self._seconds = SharedCapacity(float("inf"))  # of waiting and running images
        self._running: dict[_Job, tuple[str]] = {}  # with their clients
        self._recent = RecentClients(now)

    def wait_s(self, flow: Flow, estimated_s: float) -> float:
        """Returns the estimated seconds until more images of a request are decoded.

        estimated_s: their CPU seconds. The result is 0 if no other image waits or is decoded.
        """
        if not self._seconds.total:
            return 0.0
        return self._seconds.finish_work(flow, estimated_s) / self._slots

    async def run(
        self,
        flow: Flow,
        estimated_s: float,
        decode: Callable[[Charge], Coroutine[Any, Any, Result]],
    ) -> Result:
        """Returns the result of `decode` for an image, which starts when a decoder is granted.

        estimated_s: the expected CPU seconds. decode: gets a function to report the CPU seconds
        of every attempt to. If the caller is cancelled, an image that has started keeps its
        decoder until it ends. Raises QuotaExceeded if the client has used up its quota by then.
        """
        job = _Job(flow, estimated_s, self._now())
        self._recent.note(flow.client)
        self._seconds.add(flow, estimated_s)
        self._queue.add(job)
        try:
            self._grant()
            await job.granted
            self._quota.check(flow.client)
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
            self._quota.charge(job.flow.client, cpu_s)
            self._queue.charge(job.flow, cpu_s - charged_s)
            charged_s = 0.0

        return charge

    def _on_end(self, job: _Job, decoding: "asyncio.Future[Any]") -> None:
        if not decoding.cancelled():
            decoding.exception()  # marks it as seen, for a caller that has left
        self._release(job)

    def _release(self, job: _Job) -> None:
        self._queue.remove(job)
        self._running.pop(job, None)
        self._seconds.add(job.flow, -job.cost)
        self._grant()

    def _grant(self) -> None:
        while len(self._running) < self._slots:
            job = self._queue.first(self._is_allowed)
            if job is None:
                return
            self._queue.take(job)
            if not job.granted.done():  # otherwise its caller was cancelled
                self._running[job] = (job.flow.client,)
                job.granted.set_result(None)

    def _is_allowed(self, job: _Job) -> bool:
        if len(self._running) == self._slots - 1 > 0 and job.cost > SHORT_S:
            return False
        running = list(self._running.values())
        return self._recent.may_start(job.flow.client, self._slots, running)

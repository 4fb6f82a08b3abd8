"""Inference of one image through the request queue: in one pass, or in rounds for `auto`."""

import asyncio
import math
import time
from dataclasses import replace
from weakref import WeakKeyDictionary

from eulerlora.nn.runtime import AdaptiveSampling
from eulerlora.sampling.adaptive import MAX_AUTO_SAMPLES, StoppingRule
from eulerlora_client.contract.problems import DeadlinePassed
from eulerlora_client.contract.sampling import AUTO, Auto
from service.inference.engine import InferenceItem, ServedModel
from service.inference.queue import InferenceResult, RequestQueue, Ticket

SMOOTHING = 0.95  # weight of the previous average of rows per adapter


class QueuedInference:
    """Runs items through the request queue; for use in one event loop."""

    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue
        self._average_count: WeakKeyDictionary[ServedModel, float] = WeakKeyDictionary()

    def rows(self, served: ServedModel, samples: int | Auto) -> int:
        """Returns the rows to reserve for an item of so many samples; the average for `auto`."""
        average = math.ceil(self._average_count.get(served, MAX_AUTO_SAMPLES))
        return served.rows(average if samples == AUTO else samples)

    async def run(
        self, item: InferenceItem, rule: StoppingRule | None, deadline: float, ticket: Ticket
    ) -> InferenceResult:
        """Returns the result of an item, with the draw of all its samples.

        rule: when the rounds of `samples=auto` end, as in `AdaptiveSampling`; the samples of the
        item's draw are then ignored. None for one pass. Every round is queued at the position of
        the first one and is not refused under load. deadline: on the monotonic clock. ticket:
        reserves the rows of all rounds. Raises DeadlinePassed if a pass has not started by the
        deadline: a result from fewer rounds would depend on the load.
        """
        if rule is None:
            return await self._infer(item, deadline, ticket)
        served, queued_at = ticket.served, time.monotonic()
        distance = served.model.feature_distance
        sampling = AdaptiveSampling(item.draw, served.rows(1), rule, distance)
        results: list[InferenceResult] = []
        while sampling.next_draw is not None:
            part = self._queue.split(ticket, served.rows(sampling.next_draw.count))
            try:
                round_item = replace(item, draw=sampling.next_draw)
                results.append(await self._infer(round_item, deadline, part, queued_at))
            finally:
                self._queue.release(part)
            sampling.add(results[-1].output)
        average = self._average_count.get(served, MAX_AUTO_SAMPLES)
        taken = sampling.rows / served.rows(1)
        self._average_count[served] = SMOOTHING * average + (1 - SMOOTHING) * taken
        ran_s = sum(result.ran_s for result in results)
        queued_s = results[-1].queued_s - (ran_s - results[-1].ran_s)  # counts from the first round
        return InferenceResult(sampling.output, sampling.draw, queued_s, ran_s)

    async def _infer(
        self, item: InferenceItem, deadline: float, ticket: Ticket, queued_at: float | None = None
    ) -> InferenceResult:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        ticket.future.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
        # Cancelling has no effect on an item that already runs: it is finished.
        timer = loop.call_later(deadline - time.monotonic(), ticket.future.cancel)
        try:
            self._queue.enqueue(ticket, item, deadline, queued_at)
            await done.wait()
        finally:
            timer.cancel()
        if ticket.future.cancelled():
            raise DeadlinePassed("the deadline passed while the request was queued")
        return ticket.future.result()

"""A question's way through the engine: in one pass, or in rounds until its answer is settled."""

import asyncio
import math
import time
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from eulerlora.adaptive_sampling import MAX_SAMPLES, AdaptiveSampling
from eulerlora.settings import AUTO, Auto, Draw
from eulerlora_client.contract.problems import DeadlinePassed
from service.inference.engine import Engine, InferenceItem
from service.inference.queue import RequestQueue
from service.inference.ticket import InferenceResult, Ticket

KEPT = 0.95  # of what is known of the samples that questions take, at each question


@dataclass(frozen=True)
class Settled:
    """An answer, and the draw of all its samples."""

    answered: InferenceResult
    draw: Draw


class Asking:
    """Puts questions into the waiting room and waits for their answers; for one event loop."""

    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue
        self._usual: WeakKeyDictionary[Engine, float] = WeakKeyDictionary()

    def rows(self, engine: Engine, samples: int | Auto) -> int:
        """Rows that a question takes; with `auto`, as many as past ones took on average."""
        usual = math.ceil(self._usual.get(engine, MAX_SAMPLES))
        return engine.rows(usual if samples == AUTO else samples)

    async def answer(
        self, question: InferenceItem, deadline: float, ticket: Ticket
    ) -> InferenceResult:
        """The answer; raises DeadlinePassed as soon as it is too late to begin with it.

        deadline: on the monotonic clock.
        """
        return await self._answer(question, deadline, ticket)

    async def settle(
        self, question: InferenceItem, threshold: float | None, deadline: float, ticket: Ticket
    ) -> Settled:
        """The answer with as many samples as it takes, whatever the draw says of their number.

        Each round waits like a question of its own, in the ticket in line of the first one, and is
        not refused for load. threshold: as for `AdaptiveSampling`. ticket: its rows are for all
        rounds. Raises DeadlinePassed where one of them cannot begin in time: an answer with the
        samples at hand would depend on the load.
        """
        engine, since = ticket.engine, time.monotonic()
        sampling = AdaptiveSampling(question.draw, engine.rows(1), threshold)
        answers: list[InferenceResult] = []
        while sampling.next_draw is not None:
            turn = self._queue.split(ticket, engine.rows(sampling.next_draw.count))
            try:
                asked = replace(question, draw=sampling.next_draw)
                answers.append(await self._answer(asked, deadline, turn, since))
            finally:
                self._queue.release(turn)
            sampling.add(answers[-1].log_probabilities)
        usual = self._usual.get(engine, MAX_SAMPLES)
        self._usual[engine] = KEPT * usual + (1 - KEPT) * sampling.draw.samples
        ran_s = sum(each.ran_s for each in answers)
        queued_s = answers[-1].queued_s - (ran_s - answers[-1].ran_s)  # since the first was asked
        answered = InferenceResult(sampling.log_probabilities.flatten(0, 1), queued_s, ran_s)
        return Settled(answered, sampling.draw)

    async def _answer(
        self, question: InferenceItem, deadline: float, ticket: Ticket, since: float | None = None
    ) -> InferenceResult:
        loop, answered = asyncio.get_running_loop(), asyncio.Event()
        ticket.future.add_done_callback(lambda _: loop.call_soon_threadsafe(answered.set))
        # What runs by then can no longer be cancelled, and is answered.
        late = loop.call_later(deadline - time.monotonic(), ticket.future.cancel)
        try:
            self._queue.enqueue(
                ticket, question, deadline, since
            )  # last: the engine wants to begin
            await answered.wait()
        finally:
            late.cancel()
        if ticket.future.cancelled():
            raise DeadlinePassed("the deadline passed while the question waited")
        return ticket.future.result()

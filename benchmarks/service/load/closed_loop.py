"""Closed-loop load: so many clients, each of which asks again as soon as it has its answer."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.service.load.connection import Answer, Connection, NoAnswer

RETRY_S = 0.02


@dataclass(frozen=True)
class Outcome:
    """One request. answer: None where none came. seconds: by the client's clock, from `asked_s`,
    which is monotonic time.
    """

    asked_s: float
    seconds: float
    answer: Answer | None

    @property
    def status(self) -> int | None:
        """Of the answer."""
        return None if self.answer is None else self.answer.status


@dataclass(frozen=True)
class Load:
    """A closed loop that ran. seconds: until the wanted number of answers was there.

    client_share: of one core, that the clients took in that time.
    """

    seconds: float
    client_share: float
    outcomes: list[Outcome]

    @property
    def answered(self) -> list[Outcome]:
        """Those with status 200."""
        return [each for each in self.outcomes if each.status == 200]

    @property
    def rate(self) -> float:
        """Answers with status 200 in a second."""
        return len(self.answered) / self.seconds


def closed_loop(port: int, requests: Sequence[bytes], clients: int, answers: int) -> Load:
    """Asks the requests over and over until `answers` have come with status 200.

    All clients are busy until then; what is under way afterwards is waited for, but not counted.
    """
    asking = itertools.cycle(requests)
    return asyncio.run(_closed_loop(port, asking, clients, lambda load: len(load) >= answers))


async def _closed_loop(
    port: int,
    asking: Iterator[bytes],
    clients: int,
    enough: Callable[[list[Outcome]], bool],
) -> Load:
    outcomes: list[Outcome] = []
    good: list[Outcome] = []
    ended: list[tuple[float, float]] = []

    async def client() -> None:
        line = Line(port)
        while not ended:
            outcome = await line.ask(next(asking))
            if ended:
                break
            outcomes.append(outcome)
            if outcome.status == 200:
                good.append(outcome)
            else:
                await asyncio.sleep(RETRY_S)
            if not ended and enough(good):
                ended.append((time.monotonic(), time.process_time()))
        line.close()

    started, worked = time.monotonic(), time.process_time()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = ended[0][0] - started
    return Load(seconds, (ended[0][1] - worked) / seconds, outcomes)


class Line:
    """A client's line to a server: one connection at a time, a new one when the old is used up."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: Connection | None = None

    async def ask(self, request: bytes) -> Outcome:
        """What came of one request."""
        asked = time.monotonic()
        try:
            if self._connection is None or not self._connection.usable:
                self.close()
                self._connection = await Connection.to(self._port)
            answer = await self._connection.ask(request)
        except NoAnswer:
            self.close()
            return Outcome(asked, time.monotonic() - asked, None)
        return Outcome(asked, time.monotonic() - asked, answer)

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

"""Closed-loop load: every client sends a request as soon as it has its previous response."""

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from benchmarks.service.load.connection import Connection, NoResponseError, Response

RETRY_S = 0.02


@dataclass(frozen=True)
class Exchange:
    """A request and its response. response: None if the connection failed.

    seconds: by the client's clock, from `sent_s` in monotonic time.
    """

    sent_s: float
    seconds: float
    response: Response | None

    @property
    def status(self) -> int | None:
        """Status of the response, or None."""
        return None if self.response is None else self.response.status


@dataclass(frozen=True)
class Load:
    """Results of a closed loop. seconds: until the required number of responses was received.

    client_share: CPU time of the clients in that time, as a share of one core.
    """

    seconds: float
    client_share: float
    exchanges: list[Exchange]

    @property
    def successful(self) -> list[Exchange]:
        """The exchanges with status 200."""
        return [exchange for exchange in self.exchanges if exchange.status == 200]

    @property
    def rate(self) -> float:
        """Responses with status 200 per second."""
        return len(self.successful) / self.seconds


def closed_loop(port: int, requests: Sequence[bytes], clients: int, responses: int) -> Load:
    """Sends the requests in a cycle until `responses` responses have status 200.

    All clients are busy until then. Exchanges that end later are not counted.
    """
    cycle = itertools.cycle(requests)
    return asyncio.run(_closed_loop(port, cycle, clients, responses))


async def _closed_loop(port: int, requests: Iterator[bytes], clients: int, responses: int) -> Load:
    exchanges: list[Exchange] = []
    remaining = responses
    end = asyncio.get_running_loop().create_future()

    async def client() -> None:
        nonlocal remaining
        session = ClientSession(port)
        while not end.done():
            exchange = await session.send(next(requests))
            if end.done():
                break
            exchanges.append(exchange)
            if exchange.status != 200:
                await asyncio.sleep(RETRY_S)
                continue
            remaining -= 1
            if remaining == 0:
                end.set_result(_Clocks.now())
        session.close()

    started = _Clocks.now()
    await asyncio.gather(*(client() for _ in range(clients)))
    ended: _Clocks = end.result()
    seconds = ended.wall_s - started.wall_s
    return Load(seconds, (ended.cpu_s - started.cpu_s) / seconds, exchanges)


@dataclass(frozen=True)
class _Clocks:
    """Monotonic time and CPU time of this process."""

    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Self:
        return cls(time.monotonic(), time.process_time())


class ClientSession:
    """A client with one keep-alive connection at a time; reconnects when necessary."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: Connection | None = None

    async def send(self, request: bytes) -> Exchange:
        """Sends a request and returns it with its response."""
        sent_s = time.monotonic()
        try:
            if self._connection is None or not self._connection.usable:
                self.close()
                self._connection = await Connection.to(self._port)
            response = await self._connection.exchange(request)
        except NoResponseError:
            self.close()
            return Exchange(sent_s, time.monotonic() - sent_s, None)
        return Exchange(sent_s, time.monotonic() - sent_s, response)

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

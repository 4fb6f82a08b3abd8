"""A client's keep-alive connection: rendered requests out, answers parsed by h11 in."""

import asyncio
import re
from dataclasses import dataclass
from typing import Self

import h11

READ_BYTES = 65_536
EXPECTED = h11.Request(method="POST", target="/", headers=[("Host", "127.0.0.1")])


class NoAnswer(Exception):  # noqa: N818 - what came, not a defect
    """The connection could not be made, or ended before a whole answer."""


@dataclass(frozen=True)
class Answer:
    """A response. headers: with names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def server_seconds(self) -> dict[str, float]:
        """The durations of its `Server-Timing`, by name."""
        found = re.findall(r"(\w+);dur=([\d.]+)", self.headers.get("server-timing", ""))
        return {name: float(milliseconds) / 1000 for name, milliseconds in found}


class Connection:
    """One connection to a port of this machine; made by `to`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)
        self.answered = 0
        self.idle_since = asyncio.get_running_loop().time()

    @classmethod
    async def to(cls, port: int) -> Self:
        """A new connection. Raises NoAnswer where it is refused."""
        try:
            return cls(*await asyncio.open_connection("127.0.0.1", port))
        except OSError as error:
            raise NoAnswer(str(error)) from error

    @property
    def usable(self) -> bool:
        """Whether another request can be sent on it, as far as this side knows."""
        idle = self._http.our_state is h11.IDLE and not self._reader.at_eof()
        return idle and not self._writer.is_closing() and self._unsent == 0

    @property
    def _unsent(self) -> int:
        return self._writer.transport.get_write_buffer_size()

    async def ask(self, request: bytes) -> Answer:
        """The answer to a rendered request; it may come before the request is all sent."""
        self._writer.write(request)
        return await self.answer()

    async def send(self, data: bytes) -> None:
        """Returns when the kernel has taken all of it. Raises NoAnswer."""
        self._writer.transport.set_write_buffer_limits(0)
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise NoAnswer(str(error)) from error

    async def answer(self) -> Answer:
        """The answer to the request that was sent. Raises NoAnswer."""
        self._http.send(EXPECTED)  # only so that h11 waits for an answer: the bytes are out
        self._http.send(h11.EndOfMessage())
        try:
            answer = await self._parsed()
            if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                self._http.start_next_cycle()
        except (OSError, h11.ProtocolError) as error:
            raise NoAnswer(str(error)) from error
        self.answered += 1
        self.idle_since = asyncio.get_running_loop().time()
        return answer

    async def _parsed(self) -> Answer:
        status, headers, body = 0, {}, bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(READ_BYTES))
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return Answer(status, headers, bytes(body))
            elif not isinstance(event, h11.InformationalResponse):
                raise NoAnswer("the connection was closed without an answer")

    def close(self) -> None:
        """Closes it, whatever is under way."""
        self._writer.close()

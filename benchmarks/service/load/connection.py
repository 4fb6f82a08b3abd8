"""A client's keep-alive connection: sends rendered requests, parses responses with h11."""

import asyncio
import re
from dataclasses import dataclass
from typing import Self

import h11

READ_BYTES = 65_536
PLACEHOLDER = h11.Request(method="POST", target="/", headers=[("Host", "127.0.0.1")])


class NoResponseError(Exception):
    """The connection was refused, or closed before a complete response."""


@dataclass(frozen=True)
class Response:
    """A response. headers: names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def server_seconds(self) -> dict[str, float]:
        """Returns the durations of `Server-Timing` by name."""
        timings = re.findall(r"(\w+);dur=([\d.]+)", self.headers.get("server-timing", ""))
        return {name: float(milliseconds) / 1000 for name, milliseconds in timings}


class Connection:
    """A connection to a local port; created by `to`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)
        self.responses = 0
        self.idle_since = asyncio.get_running_loop().time()

    @classmethod
    async def to(cls, port: int) -> Self:
        """Opens a connection. Raises NoResponseError if it is refused."""
        try:
            return cls(*await asyncio.open_connection("127.0.0.1", port))
        except OSError as error:
            raise NoResponseError(str(error)) from error

    @property
    def usable(self) -> bool:
        """True if another request can be sent."""
        idle = self._http.our_state is h11.IDLE and not self._reader.at_eof()
        return idle and not self._writer.is_closing() and self._unsent == 0

    @property
    def _unsent(self) -> int:
        return self._writer.transport.get_write_buffer_size()

    async def exchange(self, request: bytes) -> Response:
        """Sends a rendered request and returns the response.

        The response may arrive before the whole request is sent. Raises NoResponseError.
        """
        self._writer.write(request)
        return await self.receive()

    async def send(self, data: bytes) -> None:
        """Sends data; returns when the kernel has buffered all of it. Raises NoResponseError."""
        self._writer.transport.set_write_buffer_limits(0)
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise NoResponseError(str(error)) from error

    async def receive(self) -> Response:
        """Returns the response to the request that was sent. Raises NoResponseError."""
        self._http.send(PLACEHOLDER)  # sets the state of h11; the bytes are already sent
        self._http.send(h11.EndOfMessage())
        try:
            response = await self._parse()
            if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                self._http.start_next_cycle()
        except (OSError, h11.ProtocolError) as error:
            raise NoResponseError(str(error)) from error
        self.responses += 1
        self.idle_since = asyncio.get_running_loop().time()
        return response

    async def _parse(self) -> Response:
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
                return Response(status, headers, bytes(body))
            elif not isinstance(event, h11.InformationalResponse):
                raise NoResponseError("expected a response, got a closed connection")

    def close(self) -> None:
        """Closes the connection."""
        self._writer.close()

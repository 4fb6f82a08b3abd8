"""Clients that send load: requests as bytes, connections, and a closed loop.

Requests are rendered in advance to save the clients' CPU time. In a closed loop every client sends
a request as soon as it has its previous response.
"""

import asyncio
import gc
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlencode

import h11
import httpx
import numpy as np

from eulerlora_contract.sampling import Mode

_BOUNDARY = "a-boundary-of-the-benchmarks"
NO_PARAMETERS: Mapping[str, object] = {}
REQUEST_SAMPLES = 4
_READ_BYTES = 65_536
_PLACEHOLDER = h11.Request(method="POST", target="/", headers=[("Host", "127.0.0.1")])
RETRY_S = 0.02
_MAX_LOST = 100
_MAX_IDLE_S = 2.0  # below the 5 s after which uvicorn closes an idle connection

_FormFile = tuple[str, tuple[str, bytes, str]]
"""A field of a form, and the name, content and media type of its file."""


def parameters(mode: Mode) -> dict[str, object]:
    return {"mode": mode, "samples": REQUEST_SAMPLES} if mode == "stoch" else {"mode": mode}


def get(path: str) -> bytes:
    return _head("GET", path)


def post(
    content: bytes,
    media_type: str = "image/jpeg",
    parameters: Mapping[str, object] = NO_PARAMETERS,
    length: int | None = None,
    path: str = "/predict",
) -> bytes:
    """A POST request, which declares `length` or, for None, the length of the content."""
    query = f"?{urlencode(parameters, doseq=True)}" if parameters else ""
    content_length = len(content) if length is None else length
    headers = (f"Content-Type: {media_type}", f"Content-Length: {content_length}")
    return _head("POST", f"{path}{query}", *headers) + content


def as_client(request: bytes, address: str) -> bytes:
    """The request as a proxy on this machine forwards it for a client."""
    return request.replace(b"\r\n", f"\r\nX-Forwarded-For: {address}\r\n".encode(), 1)


def post_form(
    files: Sequence[_FormFile],
    fields: Mapping[str, str] | None = None,
    parameters: Mapping[str, object] = NO_PARAMETERS,
    path: str = "/predict",
) -> bytes:
    media_type = f"multipart/form-data; boundary={_BOUNDARY}"
    return post(form(files, fields), media_type, parameters, path=path)


def form(files: Sequence[_FormFile], fields: Mapping[str, str] | None = None) -> bytes:
    headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
    return httpx.Request("POST", "http://host", files=files, data=fields, headers=headers).read()


def _head(method: str, target: str, *headers: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]
    return "\r\n".join(lines).encode()


@dataclass(frozen=True)
class Response:
    """A response.

    Attributes:
        headers: Names in lower case.
    """

    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """A connection to a local port; created by `to`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)
        self._idle_since = asyncio.get_running_loop().time()

    @classmethod
    async def to(cls, port: int, address: str = "127.0.0.1") -> Self:
        """A connection from a local address.

        Raises:
            ConnectionError: If it is refused.
        """
        try:
            opening = asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            return cls(*await opening)
        except OSError as error:
            raise ConnectionError(str(error)) from error

    @property
    def usable(self) -> bool:
        return (
            self._http.our_state is h11.IDLE
            and not self._reader.at_eof()
            and not self._writer.is_closing()
            and self._writer.transport.get_write_buffer_size() == 0
            and asyncio.get_running_loop().time() - self._idle_since < _MAX_IDLE_S
        )

    async def exchange(self, request: bytes) -> Response:
        """Sends a rendered request and returns the response.

        The response may arrive before the whole request is sent.

        Raises:
            ConnectionError: Without a complete response.
        """
        self._writer.write(request)
        self._http.send(_PLACEHOLDER)  # sets the state of h11; the bytes are already sent
        self._http.send(h11.EndOfMessage())
        try:
            response = await self._parse()
            if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                self._http.start_next_cycle()
        except (OSError, h11.ProtocolError) as error:
            raise ConnectionError(str(error)) from error
        self._idle_since = asyncio.get_running_loop().time()
        return response

    async def _parse(self) -> Response:
        status, headers, body = 0, {}, bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(_READ_BYTES))
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return Response(status, headers, bytes(body))
            elif not isinstance(event, h11.InformationalResponse):
                raise ConnectionError("expected a response, got a closed connection")

    def close(self) -> None:
        self._writer.close()


@dataclass(frozen=True)
class Exchange:
    """A request and its response.

    Attributes:
        sent_s: In monotonic time.
        seconds: From `sent_s`, by the client's clock.
        response: None if the connection failed.
    """

    sent_s: float
    seconds: float
    response: Response | None

    @property
    def status(self) -> int | None:
        return None if self.response is None else self.response.status


@dataclass(frozen=True)
class MeasuredLoad:
    """Results of a closed loop.

    Attributes:
        seconds: Until the required number of responses was received.
    """

    seconds: float
    exchanges: list[Exchange]

    @property
    def successful(self) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.status == 200]

    @property
    def rate(self) -> float:
        return len(self.successful) / self.seconds


def percentile(exchanges: Sequence[Exchange], percent: float) -> float:
    """A percentile of the seconds of answered exchanges; NaN if none was answered."""
    seconds = [exchange.seconds for exchange in exchanges if exchange.status == 200]
    return float(np.percentile(seconds or [np.nan], percent))


def closed_loop(port: int, requests: Sequence[bytes], clients: int, responses: int) -> MeasuredLoad:
    """Sends the requests in a cycle until `responses` responses have status 200.

    All clients are busy until then. Exchanges that end later are not counted.

    Raises:
        ConnectionError: After 100 exchanges without a response: the server has ended.
    """
    cycle = itertools.cycle(requests)
    return asyncio.run(_closed_loop(port, cycle, clients, responses))


async def _closed_loop(
    port: int, requests: Iterator[bytes], clients: int, responses: int
) -> MeasuredLoad:
    exchanges: list[Exchange] = []
    lost, remaining = 0, responses
    end = asyncio.get_running_loop().create_future()

    async def client() -> None:
        nonlocal lost, remaining
        session = ClientSession(port)
        while not end.done():
            exchange = await session.send(next(requests))
            if end.done():
                break
            exchanges.append(exchange)
            if exchange.status != 200:
                lost += exchange.response is None
                if lost >= _MAX_LOST:
                    raise ConnectionError(f"{lost} exchanges without a response")
                await asyncio.sleep(RETRY_S)
                continue
            remaining -= 1
            if remaining == 0:
                end.set_result(time.monotonic())
        session.close()

    started_s = time.monotonic()
    await asyncio.gather(*(client() for _ in range(clients)))
    return MeasuredLoad(end.result() - started_s, exchanges)


class ClientSession:
    """A client with one keep-alive connection at a time; reconnects when necessary."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self._port, self._address = port, address
        self._connection: Connection | None = None

    async def send(self, request: bytes) -> Exchange:
        sent_s = time.monotonic()
        try:
            if self._connection is None or not self._connection.usable:
                self.close()
                self._connection = await Connection.to(self._port, self._address)
            response = await self._connection.exchange(request)
        except ConnectionError:
            self.close()
            return Exchange(sent_s, time.monotonic() - sent_s, None)
        return Exchange(sent_s, time.monotonic() - sent_s, response)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


@contextmanager
def short_gc_pauses() -> Iterator[None]:
    """Excludes all present objects from garbage collection while the block runs.

    A full collection of the imported libraries would pause the clients for about 0.25 s.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()

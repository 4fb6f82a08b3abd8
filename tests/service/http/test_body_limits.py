"""Limits on bodies: size, time, and total size; over sockets and message by message."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from service.http import responses as problems
from service.http.middleware import BodyLimits, BodySettings
from tests.service.http.plain_app import guarded, plain_app
from tests.service.real_server import (
    LONG_TIMEOUTS,
    PROBE,
    SOCKET_TIMEOUT_S,
    connect,
    exchange,
    has_no_data,
    is_closed,
    read_response,
    serve_with_limits,
)

MAX_BYTES = 100_000
STALL_S = 1.0
UPLOAD_S = 1.0
HEAD = b"POST /predict HTTP/1.1\r\nHost: test\r\nContent-Type: image/png\r\n"
LONG = HEAD + b"Content-Length: 1000\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
VALID = HEAD + b"Content-Length: 4\r\n\r\nsome"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server that accepts three bodies of the maximum size in flight."""
    bodies = BodySettings(
        max_bytes=MAX_BYTES,
        upload_timeout_s=SOCKET_TIMEOUT_S,
        stall_timeout_s=SOCKET_TIMEOUT_S,
        max_bytes_in_flight=3 * MAX_BYTES,
    )
    with serve_with_limits(plain_app(), LONG_TIMEOUTS, bodies) as port:
        yield port


@pytest.fixture(scope="module")
def short_stall() -> Iterator[int]:
    """The port of a server with a short timeout between the pieces of a body."""
    bodies = BodySettings(upload_timeout_s=SOCKET_TIMEOUT_S, stall_timeout_s=STALL_S)
    with serve_with_limits(plain_app(), LONG_TIMEOUTS, bodies) as port:
        yield port


@pytest.fixture(scope="module")
def short_upload() -> Iterator[int]:
    """The port of a server with a short timeout for a whole body."""
    bodies = BodySettings(upload_timeout_s=UPLOAD_S, stall_timeout_s=UPLOAD_S)
    with serve_with_limits(plain_app(), LONG_TIMEOUTS, bodies) as port:
        yield port


@pytest.fixture(autouse=True)
def still_serves(port) -> Iterator[None]:
    """Checks after every test that the next valid request succeeds."""
    yield
    assert exchange(port, VALID).status == 200


def chunk(size: int) -> bytes:
    return f"{size:x}\r\n".encode() + bytes(size) + b"\r\n"


def test_a_declared_length_over_the_limit_is_refused_before_the_body(port) -> None:
    with connect(port) as connection:
        connection.sendall(HEAD + f"Content-Length: {MAX_BYTES + 1}\r\n\r\n".encode())
        response = read_response(connection)
        assert (response.status, response.problem["code"]) == (413, "body_too_large")
        assert response.headers["connection"] == "close"
        assert is_closed(connection)


def test_an_expected_100_continue_is_not_sent_for_a_refused_body(port) -> None:
    response = exchange(port, HEAD + b"Expect: 100-continue\r\nContent-Length: 999999999\r\n\r\n")
    assert response.status == 413


def test_a_chunked_body_over_the_limit_is_refused_before_its_end(port) -> None:
    with connect(port) as connection:
        connection.sendall(CHUNKED + chunk(60_000))
        connection.sendall(chunk(60_000))
        response = read_response(connection)  # before the end of the body
        assert (response.status, response.problem["code"]) == (413, "body_too_large")
        assert is_closed(connection)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_sends_a_too_large_body_completely_gets_the_413(port, chunked) -> None:
    pieces = [bytes(10_000)] * 300
    response = httpx.post(
        f"http://127.0.0.1:{port}/predict",
        content=iter(pieces) if chunked else b"".join(pieces),
        headers={"Content-Type": "image/jpeg"},
        timeout=SOCKET_TIMEOUT_S,
    )
    assert response.status_code == 413
    assert response.json()["code"] == "body_too_large"
    assert response.headers["Connection"] == "close"


def test_a_body_that_stalls_is_closed_with_408(short_stall) -> None:
    starts = [head + begun for head in (LONG, CHUNKED) for begun in (b"", b"8\r\nsome")]
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(short_stall)) for _ in starts]
        for connection, start in zip(connections, starts, strict=True):
            connection.sendall(start)
        for connection in connections:
            response = read_response(connection)
            assert (response.status, response.problem["code"]) == (408, "upload_too_slow")
            assert is_closed(connection)


def test_stalled_bodies_do_not_block_other_requests(port) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(port)) for _ in range(10)]
        for connection in connections:
            connection.sendall(LONG + b"some")
        assert exchange(port, PROBE).status == 200
        assert exchange(port, VALID).status == 200
        assert all(has_no_data(connection) for connection in connections)


def test_a_slowly_sent_body_is_closed_with_408(short_upload) -> None:
    with connect(short_upload) as connection:
        connection.sendall(LONG)
        connection.settimeout(UPLOAD_S / 10)
        while True:
            connection.sendall(b"x")
            try:
                response = read_response(connection)
                break
            except TimeoutError:
                continue
        assert response.status == 408


def test_announced_bytes_refuse_nobody(port) -> None:
    with ExitStack() as stack:
        for head in (*[HEAD + f"Content-Length: {MAX_BYTES}\r\n\r\n".encode()] * 30, CHUNKED):
            stack.enter_context(connect(port)).sendall(head + b"1\r\nx")
        assert exchange(port, PROBE).status == 200  # the server has processed the headers
        assert exchange(port, LONG + bytes(1000)).status == 200


@pytest.mark.parametrize("head", [LONG, CHUNKED], ids=["Content-Length", "chunked"])
def test_a_disconnect_during_the_upload_frees_its_bytes(port, head) -> None:
    for _ in range(6):  # twice the capacity
        with connect(port) as connection:
            connection.sendall(head + b"8\r\nsome")
        assert exchange(port, PROBE).status == 200


class LimitedApp:
    """An app behind the limits, called without a server. `read`: bodies read by its route."""

    def __init__(self, **settings: object) -> None:
        self.read: list[bytes] = []
        app = FastAPI()
        problems.install(app)

        @app.post("/{path}")
        async def route(request: Request) -> None:
            self.read.append(await request.body())

        limits = BodyLimits(BodySettings.model_validate(settings), {"/large": 1000})
        self.app = guarded(app, bodies=limits)

    def __call__(
        self, messages: list[dict[str, object]], path: str = "/small", **headers: str
    ) -> int:
        """Returns the status of a request with these body messages, after which it stalls."""
        arriving = iter(messages)
        sent: list[Any] = []

        async def receive() -> dict[str, object]:
            message = next(arriving, None)
            return message or await asyncio.Future()

        async def send(message: Any) -> None:
            sent.append(message)

        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
            "query_string": b"", "headers": raw,
        }  # fmt: skip
        asyncio.run(self.app(scope, receive, send))  # type: ignore[arg-type]
        status: int = sent[0]["status"]
        return status


def piece(data: bytes, more: bool = True) -> dict[str, object]:
    return {"type": "http.request", "body": data, "more_body": more}


def test_a_path_can_have_another_limit() -> None:
    send = LimitedApp(max_bytes=100)
    assert send([piece(bytes(101), more=False)], content_length="101") == 413
    assert send([piece(bytes(101), more=False)], "/large", content_length="101") == 200
    assert send([piece(bytes(1001), more=False)], "/large", transfer_encoding="chunked") == 413
    assert send.read == [bytes(101)]


def test_a_body_of_exactly_the_limit_is_read() -> None:
    send = LimitedApp(max_bytes=100)
    assert (
        send([piece(bytes(60)), piece(bytes(40), more=False)], transfer_encoding="chunked") == 200
    )
    assert send([piece(bytes(100), more=False)], content_length="100") == 200
    assert send.read == [bytes(100), bytes(100)]


def test_reading_stops_at_the_limit() -> None:
    send = LimitedApp(max_bytes=100)
    assert send([piece(bytes(60)), piece(bytes(60))], transfer_encoding="chunked") == 413
    assert send.read == []


def test_a_body_longer_than_declared_is_limited() -> None:
    assert LimitedApp(max_bytes=100)([piece(bytes(101))], content_length="10") == 413


def test_a_request_without_a_body_holds_nothing() -> None:
    send = LimitedApp(max_bytes=100, max_bytes_in_flight=1)
    assert send([piece(b"", more=False)]) == 200
    assert send([piece(b"", more=False)], content_length="0") == 200
    assert send([piece(b"xy", more=False)], content_length="2") == 200  # alone


class Arriving:
    """A request whose body arrives in pieces; `closes` tells whether its connection ends."""

    def __init__(self, app: Any, client: str, declared: int) -> None:
        self._pieces: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        self.sent: list[Any] = []
        scope = {
            "type": "http", "method": "POST", "path": "/small", "raw_path": b"/small",
            "query_string": b"", "headers": [(b"content-length", b"%d" % declared)],
            "client": (client, 1),
        }  # fmt: skip
        self.task = asyncio.create_task(app(scope, self._pieces.get, self._send))

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def receive(self, size: int, more: bool = True) -> None:
        self._pieces.put_nowait(piece(bytes(size), more))
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def closes(self) -> bool:
        return (b"connection", b"close") in self.sent[0]["headers"]


def test_clients_share_the_bytes_in_flight() -> None:
    async def scenario() -> None:
        app = LimitedApp(max_bytes=1000, max_bytes_in_flight=900).app
        first, second = Arriving(app, "10.0.0.1", 1000), Arriving(app, "10.0.0.1", 400)
        await first.receive(250)
        await second.receive(150)
        other = Arriving(app, "10.0.0.2", 200)
        await second.receive(150)
        assert (first.status, second.status) == (None, 503)
        assert second.closes
        await other.receive(200, more=False)
        assert (other.status, other.closes) == (200, False)
        await first.receive(50, more=False)
        assert first.status == 200
        again = Arriving(app, "10.0.0.1", 400)  # all bytes are free again
        await again.receive(400, more=False)
        assert again.status == 200

    asyncio.run(scenario())


def test_a_disconnect_during_the_upload_reaches_no_route() -> None:
    send = LimitedApp(max_bytes=100, max_bytes_in_flight=100)
    for _ in range(3):
        assert send([piece(b"x"), {"type": "http.disconnect"}], content_length="80") == 499
    assert send.read == []

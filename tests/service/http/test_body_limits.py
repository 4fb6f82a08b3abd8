"""Limits of bodies: in size, in time and all together; on a real server and message by message."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from service.http import problem_responses as problems
from service.http.body_limits import BodyLimitsMiddleware, BodySettings
from service.telemetry.request_id import RequestIdMiddleware
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
UPLOAD_S = 2.0
HEAD = b"POST /predict HTTP/1.1\r\nHost: test\r\nContent-Type: image/png\r\n"
LONG = HEAD + b"Content-Length: 1000\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def port(make_app, model) -> Iterator[int]:
    """Of a server that reads little: three bodies of the most bytes at once."""
    bodies = BodySettings(
        max_bytes=MAX_BYTES,
        upload_timeout_s=SOCKET_TIMEOUT_S,
        stall_timeout_s=SOCKET_TIMEOUT_S,
        max_bytes_in_flight=3 * MAX_BYTES,
    )
    with serve_with_limits(make_app(model), LONG_TIMEOUTS, bodies) as port:
        yield port


@pytest.fixture(scope="module")
def hasty(make_app, model) -> Iterator[int]:
    """Of a server that waits but briefly for more of a body."""
    bodies = BodySettings(upload_timeout_s=SOCKET_TIMEOUT_S, stall_timeout_s=STALL_S)
    with serve_with_limits(make_app(model), LONG_TIMEOUTS, bodies) as port:
        yield port


@pytest.fixture(scope="module")
def strict(make_app, model) -> Iterator[int]:
    """Of a server that waits but briefly for the end of a body."""
    bodies = BodySettings(upload_timeout_s=UPLOAD_S, stall_timeout_s=UPLOAD_S)
    with serve_with_limits(make_app(model), LONG_TIMEOUTS, bodies) as port:
        yield port


@pytest.fixture(autouse=True)
def still_serves(port, png) -> Iterator[None]:
    """After every test the next good request succeeds."""
    yield
    good = exchange(port, HEAD + f"Content-Length: {len(png)}\r\n\r\n".encode() + png)
    assert good.status == 200


def chunk(size: int) -> bytes:
    return f"{size:x}\r\n".encode() + bytes(size) + b"\r\n"


def test_a_body_over_the_limit_by_its_content_length_is_refused_before_it_is_sent(port) -> None:
    with connect(port) as connection:
        connection.sendall(HEAD + f"Content-Length: {MAX_BYTES + 1}\r\n\r\n".encode())
        answer = read_response(connection)
        assert (answer.status, answer.problem["code"]) == (413, "body_too_large")
        assert answer.headers["connection"] == "close"
        assert is_closed(connection)


def test_a_client_that_expects_100_continue_is_refused_without_it(port) -> None:
    answer = exchange(port, HEAD + b"Expect: 100-continue\r\nContent-Length: 999999999\r\n\r\n")
    assert answer.status == 413


def test_a_chunked_body_over_the_limit_is_refused_and_the_rest_not_read(port) -> None:
    with connect(port) as connection:
        connection.sendall(CHUNKED + chunk(60_000))
        connection.sendall(chunk(60_000))
        answer = read_response(connection)  # though the body has no end yet
        assert (answer.status, answer.problem["code"]) == (413, "body_too_large")
        assert is_closed(connection)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_sends_a_far_too_large_body_to_its_end_still_gets_the_413(
    port, chunked
) -> None:
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


@pytest.mark.parametrize("head", [LONG, CHUNKED], ids=["Content-Length", "chunked"])
@pytest.mark.parametrize("begun", [b"", b"8\r\nsome"], ids=["nothing sent", "some bytes"])
def test_a_body_that_stalls_is_closed_with_408(hasty, head, begun) -> None:
    started = time.monotonic()
    with connect(hasty) as connection:
        connection.sendall(head + begun)
        answer = read_response(connection)
        assert time.monotonic() - started >= STALL_S
        assert (answer.status, answer.problem["code"]) == (408, "upload_too_slow")
        assert is_closed(connection)


def test_while_bodies_stall_probes_and_predictions_are_answered(port, png) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(port)) for _ in range(10)]
        for connection in connections:
            connection.sendall(LONG + b"some")
        assert exchange(port, PROBE).status == 200
        assert (
            exchange(port, HEAD + f"Content-Length: {len(png)}\r\n\r\n".encode() + png).status
            == 200
        )
        assert all(has_no_data(connection) for connection in connections)


def test_a_body_that_drips_is_closed_with_408_at_the_deadline(strict) -> None:
    started = time.monotonic()
    with connect(strict) as connection:
        connection.sendall(LONG)
        connection.settimeout(UPLOAD_S / 10)
        while True:
            connection.sendall(b"x")
            try:
                answer = read_response(connection)
                break
            except TimeoutError:
                assert time.monotonic() - started < SOCKET_TIMEOUT_S
        assert answer.status == 408
        assert time.monotonic() - started >= UPLOAD_S


def test_bodies_that_are_too_many_together_are_refused_at_once_with_503(port) -> None:
    with ExitStack() as stack:
        begun = [stack.enter_context(connect(port)) for _ in range(3)]
        for connection in begun[:2]:
            connection.sendall(HEAD + f"Content-Length: {MAX_BYTES}\r\n\r\n".encode())
        begun[2].sendall(CHUNKED)  # of unknown length, so it counts as the limit
        assert exchange(port, PROBE).status == 200  # by now they have been seen
        refused = exchange(port, LONG)
        assert (refused.status, refused.problem["code"]) == (503, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
    while exchange(port, LONG + bytes(1000)).status == 503:
        pass  # until the server has seen that they are gone: what they held is free again


@pytest.mark.parametrize("head", [LONG, CHUNKED], ids=["Content-Length", "chunked"])
def test_a_client_gone_during_its_upload_frees_what_it_held(port, head) -> None:
    for _ in range(6):  # twice as many as fit
        with connect(port) as connection:
            connection.sendall(head + b"8\r\nsome")
        assert exchange(port, PROBE).status == 200


class Sent:
    """An app behind the limits, called without a server; `read` is what its route has read."""

    def __init__(self, **settings: object) -> None:
        self.read: list[bytes] = []
        app = FastAPI()
        problems.install(app)

        @app.post("/{path}")
        async def route(request: Request) -> None:
            self.read.append(await request.body())

        self.app = RequestIdMiddleware(
            BodyLimitsMiddleware(app, BodySettings.model_validate(settings), {"/large": 1000})
        )

    def __call__(
        self, messages: list[dict[str, object]], path: str = "/small", **headers: str
    ) -> int:
        """The status of the answer to a request whose body arrives so; then it stalls."""
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


def test_a_path_may_have_a_limit_of_its_own() -> None:
    ask = Sent(max_bytes=100)
    assert ask([piece(bytes(101), more=False)], content_length="101") == 413
    assert ask([piece(bytes(101), more=False)], "/large", content_length="101") == 200
    assert ask([piece(bytes(1001), more=False)], "/large", transfer_encoding="chunked") == 413
    assert ask.read == [bytes(101)]


def test_a_body_of_just_the_limit_is_read() -> None:
    ask = Sent(max_bytes=100)
    assert ask([piece(bytes(60)), piece(bytes(40), more=False)], transfer_encoding="chunked") == 200
    assert ask([piece(bytes(100), more=False)], content_length="100") == 200
    assert ask.read == [bytes(100), bytes(100)]


def test_reading_stops_with_the_piece_that_passes_the_limit() -> None:
    ask = Sent(max_bytes=100)
    assert ask([piece(bytes(60)), piece(bytes(60))], transfer_encoding="chunked") == 413
    assert ask.read == []


def test_a_body_longer_than_it_says_is_still_bounded() -> None:
    assert Sent(max_bytes=100)([piece(bytes(101))], content_length="10") == 413


def test_a_request_without_a_body_reserves_nothing() -> None:
    ask = Sent(max_bytes=100, max_bytes_in_flight=1)
    assert ask([piece(b"", more=False)]) == 200
    assert ask([piece(b"", more=False)], content_length="0") == 200
    assert ask([piece(b"", more=False)], content_length="2") == 503


def test_a_client_gone_during_its_upload_reaches_no_route_and_frees_what_it_held() -> None:
    ask = Sent(max_bytes=100, max_bytes_in_flight=100)
    for _ in range(3):
        assert ask([piece(b"x"), {"type": "http.disconnect"}], content_length="80") == 499
    assert ask.read == []

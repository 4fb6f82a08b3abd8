"""Connections: what h11 refuses, what is half open, and floods, seen from the other end."""

import resource
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.http import protocol as http_protocol
from service.http.body_limits import BodySettings
from service.http.protocol import ConnectionSettings, protocol_of
from tests.service.real_server import (
    LONG_TIMEOUTS,
    PROBE,
    SOCKET_TIMEOUT_S,
    connect,
    exchange,
    has_no_data,
    is_closed,
    read_response,
    run_server,
    serve_with_limits,
)

HEADER_TIMEOUT_S = 1.0
MAX_CONNECTIONS = 15
HALF = b"GET /models HTTP/1.1\r\nHost: te"


@pytest.fixture(scope="module")
def port(make_app, model) -> Iterator[int]:
    """Of a server with much patience."""
    with run_server(make_app(model)) as port:
        yield port


@pytest.fixture(scope="module")
def hasty() -> Iterator[int]:
    """Of a server with a short patience for headers, which answers nothing but probes."""
    app = FastAPI()
    app.add_api_route("/readyz", lambda: "ready")
    quick = protocol_of(ConnectionSettings(header_timeout_s=HEADER_TIMEOUT_S))
    with run_server(app, quick) as port:
        yield port


@pytest.fixture(autouse=True)
def still_serves(port) -> Iterator[None]:
    """After every test the next good request succeeds."""
    yield
    assert exchange(port, PROBE).status == 200


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"GET /models HTTP/1.1\r\nHost: t\r\nX: " + bytes(200_000).replace(b"\0", b"y"),
         431, "headers_too_large"),
        (b"GET /models HTTP/1.1\r\n\r\n", 400, "malformed_request"),
        (b"GET /models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "malformed_request"),
        (b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
         400, "malformed_request"),
        (b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: -3\r\n\r\n",
         400, "malformed_request"),
        (b"\x16\x03\x01 secret garbage\r\n\r\n", 400, "malformed_request"),
        (b"GET /models HTTP/1.1\r\nHost: t\r\nno colon\r\n\r\n", 400, "malformed_request"),
        (b"POST /predict HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip\r\n\r\n",
         400, "malformed_request"),
    ],
    ids=["200 kB header", "no Host", "two Hosts", "duplicate Content-Length",
         "negative Content-Length", "garbage request line", "garbage header", "unknown encoding"],
)  # fmt: skip
def test_what_is_not_sound_http_is_refused_with_a_problem(
    port, request_bytes, status, code
) -> None:
    with connect(port) as connection:
        connection.sendall(request_bytes)
        answer = read_response(connection)
        assert (answer.status, answer.problem["code"]) == (status, code)
        assert answer.headers["connection"] == "close"
        assert b"secret" not in answer.body
        assert is_closed(connection)


def test_what_is_refused_without_the_application_is_told_by_its_code() -> None:
    refused: list[str] = []
    with run_server(FastAPI(), protocol=protocol_of(LONG_TIMEOUTS, refused.append)) as port:
        exchange(port, PROBE.replace(b"Host: test\r\n", b""))
        exchange(port, PROBE.removesuffix(b"\r\n") + b"X: " + b"y" * 200_000)
        exchange(port, PROBE)
    assert refused == ["malformed_request", "headers_too_large"]


def test_headers_that_h11_saw_only_whole_are_bounded_too(client) -> None:
    few = {f"X-{number}": "y" * 1000 for number in range(15)}
    assert client.get("/readyz", headers=few).status_code == 200
    answer = client.get("/readyz", headers={**few, "X-15": "y" * 1000, "X-16": "y" * 1000})
    assert (answer.status_code, answer.json()["code"]) == (431, "headers_too_large")
    assert answer.headers["connection"] == "close"


def test_a_wrong_method_is_refused(port) -> None:
    answer = exchange(port, b"DELETE /predict HTTP/1.1\r\nHost: test\r\n\r\n")
    assert (answer.status, answer.problem["code"]) == (405, "method_not_allowed")


def test_a_broken_chunk_ends_its_request(port) -> None:
    with connect(port) as connection:
        connection.sendall(
            b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: image/png\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nnot a length\r\n"
        )
        assert read_response(connection).problem["code"] == "malformed_request"
        assert is_closed(connection)


def test_while_headers_are_half_open_probes_and_predictions_are_answered(port, png) -> None:
    good = f"Host: test\r\nContent-Type: image/png\r\nContent-Length: {len(png)}\r\n\r\n"
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(port)) for _ in range(10)]
        for connection in connections[:5]:
            connection.sendall(HALF)
        assert exchange(port, PROBE).status == 200
        assert exchange(port, b"POST /predict HTTP/1.1\r\n" + good.encode() + png).status == 200
        assert all(has_no_data(connection) for connection in connections)


def test_half_open_headers_are_closed_at_a_deadline(hasty) -> None:
    started = time.monotonic()
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(hasty)) for _ in range(10)]
        for connection in connections[:5]:
            connection.sendall(HALF)
        assert all(is_closed(connection) for connection in connections)
        assert time.monotonic() - started >= HEADER_TIMEOUT_S
        assert exchange(hasty, PROBE).status == 200


def test_headers_that_drip_are_closed_at_the_same_deadline(hasty) -> None:
    started = time.monotonic()
    with connect(hasty) as connection:
        connection.settimeout(0.05)
        closed = False
        while not closed and time.monotonic() - started < SOCKET_TIMEOUT_S:
            try:
                connection.sendall(b"x")
                closed = connection.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                closed = True
        assert closed
        assert time.monotonic() - started >= HEADER_TIMEOUT_S


def test_a_second_request_that_stays_half_is_closed_too(hasty) -> None:
    with connect(hasty) as connection:
        connection.sendall(PROBE)
        assert read_response(connection).status == 200
        connection.sendall(HALF)
        assert is_closed(connection)


def test_an_idle_connection_may_be_used_again_after_the_header_deadline(hasty) -> None:
    with connect(hasty) as connection:
        connection.sendall(PROBE)
        assert read_response(connection).status == 200
        time.sleep(1.5 * HEADER_TIMEOUT_S)
        connection.sendall(PROBE)
        assert read_response(connection).status == 200


def test_a_body_that_is_answered_before_its_end_is_not_awaited_for_ever(hasty) -> None:
    with connect(hasty) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: t\r\nContent-Length: 9999\r\n\r\nx")
        assert read_response(connection).status == 404
        connection.sendall(b"x")
        assert is_closed(connection)


def test_requests_in_one_packet_are_answered_in_turn(port) -> None:
    with connect(port) as connection:
        connection.sendall(PROBE * 3)
        for _ in range(3):
            assert read_response(connection).status == 200


def test_in_a_flood_of_connections_all_but_probes_get_503(make_app, model) -> None:
    few = LONG_TIMEOUTS.model_copy(update={"max_connections": MAX_CONNECTIONS})
    with serve_with_limits(make_app(model), few, BodySettings()) as port, ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            stack.enter_context(connect(port))
        refused = exchange(port, b"GET /models HTTP/1.1\r\nHost: test\r\n\r\n")
        assert (refused.status, refused.problem["code"]) == (503, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["connection"] == "close"
        for probe in (b"/livez", b"/readyz", b"/metrics"):
            assert exchange(port, PROBE.replace(b"/readyz", probe)).status == 200
        stack.close()
        while exchange(port, b"GET /models HTTP/1.1\r\nHost: test\r\n\r\n").status != 200:
            pass  # until the server has seen that they are gone


def test_past_the_limit_of_files_the_longest_wait_ends_and_probes_answer(make_app, model) -> None:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = ConnectionSettings(
        header_timeout_s=SOCKET_TIMEOUT_S, max_connections=5, spare_files=files - 10
    )
    assert connections.most_connections() == 10
    with (
        serve_with_limits(make_app(model), connections, BodySettings()) as port,
        ExitStack() as stack,
    ):
        flood = [stack.enter_context(connect(port)) for _ in range(30)]
        assert exchange(port, PROBE).status == 200
        assert all(is_closed(connection) for connection in flood[:21])
        flood[-1].sendall(PROBE)
        assert read_response(flood[-1]).status == 200


def test_an_answer_that_is_not_taken_is_not_kept_for_ever(monkeypatch) -> None:
    monkeypatch.setattr(http_protocol, "ANSWER_TIMEOUT_S", 0.5)
    whole, piece, ended = 50_000_000, bytes(1_000_000), threading.Event()

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        headers = [(b"content-length", b"%d" % whole)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for sent in range(len(piece), whole + 1, len(piece)):
            more = sent < whole  # each waits until the one before is taken, or the client gone
            await send({"type": "http.response.body", "body": piece, "more_body": more})
        ended.set()

    with run_server(app) as port, connect(port) as connection:
        connection.sendall(PROBE)
        assert ended.wait(SOCKET_TIMEOUT_S)
        monkeypatch.undo()
        received = 0
        with suppress(ConnectionResetError):
            while taken := connection.recv(1_000_000):
                received += len(taken)
        assert 0 < received < whole
        assert len(exchange(port, PROBE).body) == whole  # a client that reads gets it all


def test_uvicorn_still_has_the_names_that_the_protocol_relies_on() -> None:
    instance_names = set(H11Protocol.__init__.__code__.co_names)
    assert {"conn", "app", "connections", "cycle", "timeout_keep_alive_task"} <= instance_names
    assert "handle_events" in H11Protocol.data_received.__code__.co_names
    assert "send_400_response" in H11Protocol.handle_events.__code__.co_names
    assert (
        protocol_of(ConnectionSettings()).idle is not protocol_of(ConnectionSettings()).idle
    )

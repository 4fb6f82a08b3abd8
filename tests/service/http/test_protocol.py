"""Connections: protocol errors, timeouts, and limits, tested over sockets."""

import asyncio
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from service.http.protocol import protocol_of
from service.http.server import Address, server_config
from tests.server_process import wait_until
from tests.service.http.plain_app import PROBES, plain_app
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
)
from tests.service.settings import settings_of

HEADER_TIMEOUT_S = 1.0
MAX_CONNECTIONS = 15
VICTIM, ATTACKER = "127.0.0.2", "127.0.0.3"
LONG_BODIES = settings_of(
    "bodies", upload_timeout_s=SOCKET_TIMEOUT_S, stall_timeout_s=SOCKET_TIMEOUT_S
)
HALF = b"GET /models HTTP/1.1\r\nHost: te"
VALID_POST = b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\n\r\nx"
MODELS = b"GET /models HTTP/1.1\r\nHost: test\r\n\r\n"
UPLOAD = b"POST /predict HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"
UNREAD_POST = b"POST /nowhere HTTP/1.1\r\nHost: t\r\nContent-Length: 9999\r\n\r\nx"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server with long timeouts."""
    with run_server(plain_app()) as port:
        yield port


@pytest.fixture(scope="module")
def short_header_timeout() -> Iterator[int]:
    """The port of a server with a short timeout for headers."""
    protocol = protocol_of(settings_of("connections", header_timeout_s=HEADER_TIMEOUT_S))
    with run_server(plain_app(), protocol) as port:
        yield port


@pytest.fixture(autouse=True)
def still_serves(port) -> Iterator[None]:
    """Checks after every test that the next valid request succeeds."""
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
        (b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n"
         b"\r\n0\r\n\r\nGET /models HTTP/1.1\r\nHost: t\r\n\r\n", 400, "malformed_request"),
        (b"POST /predict HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip\r\n\r\n",
         400, "malformed_request"),
    ],
    ids=["200 kB header", "no Host", "two Hosts", "duplicate Content-Length",
         "negative Content-Length", "garbage request line", "garbage header",
         "two lengths of a body", "unknown encoding"],
)  # fmt: skip
def test_malformed_http_is_refused_with_a_problem(port, request_bytes, status, code) -> None:
    with connect(port) as connection:
        connection.sendall(request_bytes)
        response = read_response(connection)
        assert (response.status, response.problem["code"]) == (status, code)
        assert response.headers["connection"] == "close"
        assert b"secret" not in response.body
        assert is_closed(connection)


def test_problems_outside_the_application_are_reported_by_code() -> None:
    codes: list[str] = []
    with run_server(FastAPI(), protocol=protocol_of(LONG_TIMEOUTS, codes.append)) as port:
        exchange(port, PROBE.replace(b"Host: test\r\n", b""))
        exchange(port, PROBE.removesuffix(b"\r\n") + b"X: " + b"y" * 200_000)
        exchange(port, PROBE)
    assert codes == ["malformed_request", "headers_too_large"]


def test_an_invalid_chunk_of_a_request_for_headers_is_answered_without_a_body() -> None:
    codes: list[str] = []
    with (
        run_server(plain_app(), protocol=protocol_of(LONG_TIMEOUTS, codes.append)) as port,
        connect(port) as connection,
    ):
        connection.sendall(
            b"HEAD /livez HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nno length\r\n"
        )
        sent = connection.recv(65_536, socket.MSG_WAITALL)
    assert sent.startswith(b"HTTP/1.1 400 ")
    assert sent.endswith(b"\r\n\r\n")
    assert codes == ["malformed_request"]


def test_headers_that_arrive_at_once_are_limited_too(client) -> None:
    few = {f"X-{number}": "y" * 1000 for number in range(15)}
    assert client.get("/readyz", headers=few).status_code == 200
    response = client.get("/readyz", headers={**few, "X-15": "y" * 1000, "X-16": "y" * 1000})
    assert (response.status_code, response.json()["code"]) == (431, "headers_too_large")
    assert response.headers["connection"] == "close"


def test_an_invalid_chunk_ends_its_request(port) -> None:
    with connect(port) as connection:
        connection.sendall(
            b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: image/png\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nnot a length\r\n"
        )
        assert read_response(connection).problem["code"] == "malformed_request"
        assert is_closed(connection)


def test_incomplete_headers_do_not_block_other_requests(port) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(port)) for _ in range(10)]
        for connection in connections[:5]:
            connection.sendall(HALF)
        assert exchange(port, PROBE).status == 200
        assert exchange(port, VALID_POST).status == 200
        assert all(has_no_data(connection) for connection in connections)


def test_waiting_connections_are_closed_at_the_timeout(short_header_timeout) -> None:
    with ExitStack() as stack:
        empty, half, second_half, unread_body = (
            stack.enter_context(connect(short_header_timeout)) for _ in range(4)
        )
        half.sendall(HALF)
        second_half.sendall(PROBE)
        unread_body.sendall(UNREAD_POST)
        assert read_response(second_half).status == 200
        second_half.sendall(HALF)
        assert read_response(unread_body).status == 404
        unread_body.sendall(b"x")
        for connection in (empty, half, second_half, unread_body):
            assert is_closed(connection)
        assert exchange(short_header_timeout, PROBE).status == 200


def test_slowly_sent_headers_are_closed_at_the_same_timeout(short_header_timeout) -> None:
    with connect(short_header_timeout) as connection:
        connection.settimeout(0.05)
        closed = False
        while not closed:
            try:
                connection.sendall(b"x")
                closed = connection.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                closed = True


def test_an_idle_connection_stays_open_after_the_header_timeout(short_header_timeout) -> None:
    with connect(short_header_timeout) as connection:
        connection.sendall(PROBE)
        assert read_response(connection).status == 200
        time.sleep(1.5 * HEADER_TIMEOUT_S)
        connection.sendall(PROBE)
        assert read_response(connection).status == 200


def test_a_connection_is_closed_after_the_idle_timeout() -> None:
    settings = LONG_TIMEOUTS.model_copy(update={"idle_timeout_s": 0.2})
    with run_server(plain_app(), protocol_of(settings)) as port, connect(port) as connection:
        connection.sendall(PROBE)
        assert read_response(connection).status == 200
        assert is_closed(connection)


def test_a_new_connection_replaces_the_one_that_is_idle_longest() -> None:
    few = LONG_TIMEOUTS.model_copy(update={"max_connections": 3})
    with run_server(plain_app(), protocol_of(few)) as port, ExitStack() as stack:
        first, second, third = (stack.enter_context(connect(port)) for _ in range(3))
        for connection in (second, first, third, second):
            connection.sendall(MODELS)
            assert read_response(connection).status == 200
        assert exchange(port, MODELS).status == 200
        assert is_closed(first)
        for connection in (second, third):
            connection.sendall(MODELS)
            assert read_response(connection).status == 200


REFUSED_AT_ONCE = [
    b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: 30000000\r\n\r\n",
    b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"1c9c380\r\n",
    b"not HTTP\r\n\r\n",
]


@pytest.mark.parametrize("head", REFUSED_AT_ONCE, ids=["too large", "two lengths", "garbage"])
def test_a_client_that_reads_only_after_its_whole_body_gets_the_problem(port, head) -> None:
    with connect(port) as connection:
        connection.sendall(head + bytes(30_000_000))  # fails if the server resets the connection
        response = read_response(connection)
        assert response.status in (400, 413)
        assert response.headers["connection"] == "close"
        assert response.problem["code"] in ("malformed_request", "body_too_large")
        assert is_closed(connection)


@pytest.mark.parametrize(("name", "limit"), [("_LINGER_S", 0.2), ("_LINGER_BYTES", 1000)])
def test_a_refused_client_that_continues_to_send_is_disconnected(monkeypatch, name, limit) -> None:
    monkeypatch.setattr(f"service.http.protocol.{name}", limit)
    with run_server(plain_app()) as port:
        with connect(port) as connection:
            connection.sendall(REFUSED_AT_ONCE[0])
            assert read_response(connection).status == 413
            with pytest.raises(ConnectionError):
                while True:
                    connection.sendall(bytes(100))
        assert exchange(port, PROBE).status == 200


MALFORMED = [
    b"not HTTP\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nno length\r\n",
]


@pytest.mark.parametrize("data", MALFORMED, ids=["head", "chunk"])
def test_a_client_that_stays_after_a_malformed_request_is_disconnected(monkeypatch, data) -> None:
    monkeypatch.setattr("service.http.protocol._LINGER_S", 0.2)
    protocol = protocol_of(LONG_TIMEOUTS)
    with run_server(plain_app(), protocol) as port, connect(port) as connection:
        connection.sendall(data)
        while connection.recv(1000):
            pass
        wait_until(lambda: not protocol.networks, SOCKET_TIMEOUT_S)


@contextmanager
def crowded(**limits: int) -> Iterator[tuple[int, Callable[[str, bytes], socket.socket]]]:
    """Yields the port of a server for few connections, and a function that opens one.

    The function takes the address that the connection comes from and what it sends.
    """
    settings = LONG_TIMEOUTS.model_copy(update={"max_connections": MAX_CONNECTIONS, **limits})
    with (
        run_server(plain_app(bodies=LONG_BODIES), protocol_of(settings)) as port,
        ExitStack() as stack,
    ):

        def opened(address: str, data: bytes) -> socket.socket:
            connection = stack.enter_context(connect(port, address))
            connection.sendall(data)
            if data == UPLOAD:
                assert read_response(connection).status == 100  # the body is being read
            return connection

        yield port, opened


def test_too_many_connections_get_503_except_for_probes() -> None:
    with crowded() as (port, opened):
        uploads = [opened(ATTACKER, UPLOAD) for _ in range(MAX_CONNECTIONS)]
        refused = exchange(port, MODELS, ATTACKER)
        assert (refused.status, refused.problem["code"]) == (503, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["connection"] == "close"
        for path in PROBES:
            assert exchange(port, PROBE.replace(b"/readyz", path.encode()), ATTACKER).status == 200
        assert exchange(port, MODELS).status == 200  # of another address
        for upload in uploads:  # none was cut
            upload.sendall(b"x")
            assert read_response(upload).status == 200
            upload.close()
        while exchange(port, MODELS, ATTACKER).status != 200:
            pass  # until the server has processed the disconnects


@pytest.mark.parametrize("grace_s", [0, SOCKET_TIMEOUT_S])
def test_connections_without_headers_lock_no_other_address_out(monkeypatch, grace_s) -> None:
    monkeypatch.setattr("service.http.protocol._HEADER_GRACE_S", grace_s)
    with crowded() as (port, opened):
        kept = opened(VICTIM, MODELS)
        assert read_response(kept).status == 200
        upload, half = opened(VICTIM, UPLOAD), opened(VICTIM, HALF)
        for _ in range(2 * MAX_CONNECTIONS):
            opened(ATTACKER, HALF)
        for _ in range(3):
            assert exchange(port, MODELS, VICTIM).status == 200
        for connection, rest in ((kept, MODELS), (upload, b"x"), (half, b"st\r\n\r\n")):
            connection.sendall(rest)
            assert read_response(connection).status == 200


def test_the_oldest_connection_without_headers_is_closed_first_then_idle_ones(monkeypatch) -> None:
    monkeypatch.setattr("service.http.protocol._HEADER_GRACE_S", 0)
    with crowded(max_connections=4) as (_, opened):
        idle = opened(ATTACKER, MODELS)
        assert read_response(idle).status == 200
        upload, first, second = (opened(ATTACKER, data) for data in (UPLOAD, HALF, HALF))
        for closed in (first, second, idle):
            assert read_response(opened(ATTACKER, VALID_POST)).status == 200
            assert has_no_data(upload)
            assert is_closed(closed)
            upload, before = opened(ATTACKER, UPLOAD), upload
            before.sendall(b"x")
            assert read_response(before).status == 200


def test_headers_that_a_proxy_sends_at_once_are_read_before_others_are_closed() -> None:
    with crowded() as (_, opened):
        connections = [opened(ATTACKER, b"") for _ in range(2 * MAX_CONNECTIONS)]
        for connection in connections:
            connection.sendall(PROBE)
            assert read_response(connection).status == 200


def test_at_the_limit_of_open_files_the_oldest_connections_of_the_flood_are_closed() -> None:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with crowded(max_connections=5, spare_files=files - 10) as (port, opened):
        victim = opened(VICTIM, HALF)
        flood = [opened(ATTACKER, HALF) for _ in range(30)]
        assert exchange(port, PROBE, VICTIM).status == 200
        assert all(is_closed(connection) for connection in flood[:22])
        victim.sendall(b"st\r\n\r\n")
        assert read_response(victim).status == 200


def test_at_the_limit_of_open_files_delayed_refusals_lock_no_other_address_out(monkeypatch) -> None:
    monkeypatch.setattr("service.http.responses._MAX_REFUSAL_DELAY_S", SOCKET_TIMEOUT_S)
    monkeypatch.setattr("service.http.middleware._RETRY_AFTER_S", SOCKET_TIMEOUT_S)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with crowded(max_connections=3, spare_files=files - 8) as (port, opened):
        for _ in range(3):
            opened(ATTACKER, UPLOAD)
        refused = [opened(ATTACKER, MODELS) for _ in range(5)]
        assert exchange(port, MODELS, VICTIM).status == 200
        assert is_closed(refused[0])


def test_all_connections_that_wait_are_accepted_in_a_few_turns_of_the_loop() -> None:
    config = server_config(plain_app(), protocol_of(LONG_TIMEOUTS))
    accepted: list[None] = []

    class Counted(asyncio.Protocol):
        def connection_made(self, _: asyncio.BaseTransport) -> None:
            accepted.append(None)

    async def serve(listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Counted, sock=listener, backlog=config.backlog)
        with ExitStack() as stack:
            for _ in range(50):
                stack.enter_context(connect(listener.getsockname()[1]))
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(accepted) == 50
        server.close()

    with Address("127.0.0.1").listen() as listener:
        asyncio.Runner(loop_factory=config.get_loop_factory()).run(serve(listener))


def test_a_response_that_the_client_does_not_read_is_aborted(monkeypatch) -> None:
    monkeypatch.setattr("service.http.protocol._WRITE_TIMEOUT_S", 0.5)
    size, piece, ended = 50_000_000, bytes(1_000_000), threading.Event()

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        headers = [(b"content-length", b"%d" % size)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for sent in range(len(piece), size + 1, len(piece)):
            more = sent < size  # every send waits until the client reads or is disconnected
            await send({"type": "http.response.body", "body": piece, "more_body": more})
        ended.set()

    with run_server(app) as port, connect(port) as connection:
        connection.sendall(PROBE)
        assert ended.wait(SOCKET_TIMEOUT_S)
        monkeypatch.undo()
        received = 0
        with suppress(ConnectionResetError):
            while chunk := connection.recv(1_000_000):
                received += len(chunk)
        assert 0 < received < size
        assert len(exchange(port, PROBE).body) == size  # a client that reads gets all of it

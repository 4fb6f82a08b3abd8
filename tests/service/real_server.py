"""A real server on a loopback port, and raw connections to it, for tests of the wire."""

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from service.http.protocol import protocol_of
from service.http.server import Address, server_config
from tests.service.settings import settings_of

SOCKET_TIMEOUT_S = 120.0
LONG_TIMEOUTS = settings_of("connections", header_timeout_s=SOCKET_TIMEOUT_S, idle_timeout_s=600)
PROBE = b"GET /readyz HTTP/1.1\r\nHost: test\r\n\r\n"


@dataclass(frozen=True)
class RawResponse:
    """A response as it was received; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        """The problem document; it must be complete and name the response's request id."""
        assert self.headers["content-type"] == "application/problem+json"
        problem: dict[str, Any] = json.loads(self.body)
        assert set(problem) == {"type", "title", "status", "detail", "code", "request_id"}
        assert problem["status"] == self.status
        assert problem["request_id"] == self.headers["x-request-id"]
        return problem


@contextmanager
def run_server(app: ASGIApp, protocol: Any = None, trusted_proxies: str = "") -> Iterator[int]:
    """Yields the port of a server with the configuration of `eulerlora serve`.

    protocol: by default with long timeouts.
    """
    config = server_config(app, protocol or protocol_of(LONG_TIMEOUTS), trusted_proxies)
    config.timeout_graceful_shutdown = 1  # the test has ended: a delayed response is not sent
    server = uvicorn.Server(config)
    with Address("127.0.0.1").listen() as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the server did not start"
                time.sleep(0.01)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def connect(port: int, address: str = "127.0.0.1") -> socket.socket:
    """A connection from a loopback address; the caller closes it."""
    return socket.create_connection(
        ("127.0.0.1", port), timeout=SOCKET_TIMEOUT_S, source_address=(address, 0)
    )


def read_response(connection: socket.socket) -> RawResponse:
    """The next response on a connection."""
    with connection.makefile("rb", buffering=0) as reader:  # reads nothing of the next response
        status_line = reader.readline()
        assert status_line, "the connection was closed without a response"
        status = int(status_line.split()[1])
        headers = {}
        while line := reader.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = bytearray()
        while len(body) < int(headers.get("content-length", 0)):
            received = reader.read(int(headers["content-length"]) - len(body))
            assert received, "the connection was closed within a response"
            body += received
        return RawResponse(status, headers, bytes(body))


def exchange(port: int, request: bytes, address: str = "127.0.0.1") -> RawResponse:
    """The response to a request on a new connection from a loopback address."""
    with connect(port, address) as connection:
        connection.sendall(request)
        return read_response(connection)


def has_no_data(connection: socket.socket) -> bool:
    """True if the connection is open and the server has sent nothing so far."""
    readable, _, _ = select.select([connection], [], [], 0)
    return not readable


def is_closed(connection: socket.socket) -> bool:
    """True if the server closes the connection without another byte."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True

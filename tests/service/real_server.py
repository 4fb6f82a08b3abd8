"""A real server on a loopback port, and raw connections to it, for what only sockets can show."""

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
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from service.http.body_limits import BodyLimitsMiddleware, BodySettings
from service.http.protocol import (
    MAX_HEADER_BYTES,
    ConnectionLimitsMiddleware,
    ConnectionSettings,
    Protocol,
    protocol_of,
)

PATIENCE_S = 120.0
KEEP_ALIVE_S = 600  # a slow machine is idle for longer than uvicorn's five seconds
PATIENT = ConnectionSettings(header_timeout_s=PATIENCE_S)
PROBE = b"GET /readyz HTTP/1.1\r\nHost: test\r\n\r\n"


@dataclass(frozen=True)
class Answer:
    """A response as it came over the socket; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        """The problem document, which must be whole and name the response's request id."""
        assert self.headers["content-type"] == "application/problem+json"
        problem: dict[str, Any] = json.loads(self.body)
        assert set(problem) == {"type", "title", "status", "detail", "code", "request_id"}
        assert problem["status"] == self.status
        assert problem["request_id"] == self.headers["x-request-id"]
        return problem


@contextmanager
def served(app: FastAPI, connections: ConnectionSettings, bodies: BodySettings) -> Iterator[int]:
    """The port of a server that keeps the limits while the context lasts."""
    app.user_middleware += [
        Middleware(ConnectionLimitsMiddleware, settings=connections),
        Middleware(BodyLimitsMiddleware, settings=bodies, max_bytes_by_path={}),
    ]
    with running(app, protocol_of(connections)) as port:
        yield port


@contextmanager
def running(app: ASGIApp, protocol: type[Protocol] | None = None) -> Iterator[int]:
    """The port of a server that speaks HTTP as `eulerlora serve` does, by default patiently."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        http=protocol or protocol_of(PATIENT),
        ws="none",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        log_config=None,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def connect(port: int) -> socket.socket:
    """A connection to close after use."""
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def answer_on(connection: socket.socket) -> Answer:
    """The next response on a connection."""
    with connection.makefile("rb", buffering=0) as reader:  # what follows is the next response's
        first = reader.readline()
        assert first, "closed without an answer"
        status = int(first.split()[1])
        headers = {}
        while line := reader.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = bytearray()
        while len(body) < int(headers.get("content-length", 0)):
            received = reader.read(int(headers["content-length"]) - len(body))
            assert received, "closed before the whole answer had come"
            body += received
        return Answer(status, headers, bytes(body))


def ask(port: int, request: bytes) -> Answer:
    """The response to a request on a connection of its own."""
    with connect(port) as connection:
        connection.sendall(request)
        return answer_on(connection)


def nothing_came(connection: socket.socket) -> bool:
    """Whether the connection is open and the server has said nothing on it so far."""
    readable, _, _ = select.select([connection], [], [], 0)
    return not readable


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes the connection without another byte, within our patience."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True

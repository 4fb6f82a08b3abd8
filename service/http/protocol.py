"""uvicorn's HTTP/1.1 protocol (h11) with timeouts, connection limits and problem documents.

uvicorn alone has no timeout for incomplete headers, for the unread rest of a body after the
response, and for clients that do not read a response; it reports protocol errors in plain text.
"""

import asyncio
import sys
import uuid
from collections.abc import Callable
from typing import Any, ClassVar

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from eulerlora_client.contract.problems import (
    HeadersTooLarge,
    MalformedRequest,
    Overloaded,
    Problem,
)
from service.http.problem_responses import (
    MEDIA_TYPE,
    problem_document,
    problem_headers,
    problem_response,
)
from service.settings import ConnectionSettings
from service.telemetry.request_id import HEADER

PROBES = frozenset({"/livez", "/readyz", "/metrics"})
OPEN_CONNECTIONS = "open_connections"  # key in the request state
MAX_HEADER_BYTES = 16 * 1024  # of target, header names and header values
TOO_LARGE = f"expected headers of at most {MAX_HEADER_BYTES:,} bytes"
RETRY_AFTER_S = 1.0
WRITE_TIMEOUT_S = 60.0  # for a client to read a response that exceeds the socket buffers


def protocol_of(
    settings: ConnectionSettings, on_problem: Callable[[str], None] = lambda _: None
) -> type["Protocol"]:
    """Returns the protocol class that uvicorn instantiates for every connection.

    on_problem: called with the code of every problem that never reaches the application.
    """
    attributes = {"settings": settings, "idle": {}, "on_problem": staticmethod(on_problem)}
    return type("Protocol", (Protocol,), attributes)


class Protocol(H11Protocol):
    """A connection with timeouts for reading headers and for writing responses.

    Relies on these internal names of uvicorn: `conn`, `app`, `connections`, `cycle`,
    `handle_events`, `send_400_response` and `timeout_keep_alive_task`.
    """

    settings: ClassVar[ConnectionSettings] = ConnectionSettings()
    idle: ClassVar[dict["Protocol", None]] = {}  # connections without a request, oldest first
    on_problem: Callable[[str], None]  # a class attribute

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = _with_connection_count(self.app, self.connections)
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_header_timer()
        if len(self.connections) > self.settings.most_connections():
            next(iter(self.idle)).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.our_state not in (h11.IDLE, h11.DONE):
            self._stop_header_timer()
        elif self.timeout_keep_alive_task is None and self._header_timer is None:
            self._start_header_timer()  # also for an unread rest of a body

    def send_400_response(self, msg: str) -> None:
        """Responds to a protocol error; uvicorn calls it while it handles h11's exception."""
        error = sys.exception()
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY):
            self.cycle.disconnected = True  # the body is invalid: suppresses the response
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send(
                HeadersTooLarge(TOO_LARGE)
                if hint == HeadersTooLarge.status
                else MalformedRequest("expected a well-formed HTTP/1.1 request")
            )
        self.transport.close()

    def _send(self, problem: Problem) -> None:
        request_id = uuid.uuid4().hex
        document = problem_document(problem, request_id)
        body = document.model_dump_json().encode()
        headers = {
            **problem_headers(problem),
            "Content-Type": MEDIA_TYPE,
            "Content-Length": str(len(body)),
            HEADER: request_id,
        }
        response = h11.Response(
            status_code=document.status,
            headers=list(headers.items()),
            reason=STATUS_PHRASES[document.status],
        )
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.on_problem(problem.code)

    def _start_header_timer(self) -> None:
        self._stop_header_timer()
        self.idle[self] = None
        self._header_timer = self.loop.call_later(
            self.settings.header_timeout_s, self.transport.abort
        )

    def _stop_header_timer(self) -> None:
        self.idle.pop(self, None)
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


class ConnectionLimitsMiddleware:
    """Refuses too large headers with 431, and requests over too many connections with 503.

    h11 limits only incomplete headers, so headers that arrive in one piece are checked here. Probes
    are exempt from the limit on connections.
    """

    def __init__(self, app: ASGIApp, settings: ConnectionSettings) -> None:
        self.app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.get("state", {})
        app = self.app
        if scope["type"] == "http" and header_bytes(scope) > MAX_HEADER_BYTES:
            app = problem_response(HeadersTooLarge(TOO_LARGE), state["request_id"])
        elif (
            state.get(OPEN_CONNECTIONS, 0) > self._settings.max_connections
            and scope["path"] not in PROBES
        ):
            problem = Overloaded("too many open connections", RETRY_AFTER_S)
            app = problem_response(problem, state["request_id"], closes=True)
        await app(scope, receive, send)


def header_bytes(scope: Scope) -> int:
    """Returns the total size of target, header names and header values."""
    target = len(scope["raw_path"]) + len(scope["query_string"])
    return target + sum(len(name) + len(value) for name, value in scope["headers"])


def _with_connection_count(app: Any, connections: set[Any]) -> Any:
    """Wraps the application; stores the number of open connections in every request state."""

    async def counting_app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"][OPEN_CONNECTIONS] = len(connections)
        await app(scope, receive, send)

    return counting_app

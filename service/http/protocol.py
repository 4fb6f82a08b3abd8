"""HTTP/1.1 as uvicorn speaks it with h11, with a bound on what a connection may keep waiting.

uvicorn alone waits for ever for headers that never end, for the rest of a body that it has already
answered and for a client to take its answer, and tells of what h11 refuses in plain text.
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
    problem_body,
    problem_headers,
    problem_response,
)
from service.settings import ConnectionSettings
from service.telemetry.request_id import HEADER

PROBES = frozenset({"/livez", "/readyz", "/metrics"})
OPEN_CONNECTIONS = "open_connections"  # where a request's state tells how many there were
MAX_HEADER_BYTES = 16 * 1024  # of a request: its target, header names and values
TOO_LARGE = f"the headers of a request may have {MAX_HEADER_BYTES:,} bytes"
RETRY_AFTER_S = 1.0
ANSWER_TIMEOUT_S = 60.0  # for a client to take what the operating system does not hold for it


def protocol_of(
    settings: ConnectionSettings, refused: Callable[[str], None] = lambda _: None
) -> type["Protocol"]:
    """The class that uvicorn makes an instance of for each connection.

    refused: told the code of every problem that is answered here, without the application.
    """
    own = {"settings": settings, "waiting": {}, "refused": staticmethod(refused)}
    return type("Protocol", (Protocol,), own)


class Protocol(H11Protocol):
    """A connection that is closed when its client makes it wait.

    Besides public names it relies on uvicorn's `conn`, `app`, `connections`, `cycle`,
    `handle_events`, `send_400_response` and `timeout_keep_alive_task`.
    """

    settings: ClassVar[ConnectionSettings] = ConnectionSettings()
    waiting: ClassVar[dict["Protocol", None]] = {}  # without a request, longest first
    refused: Callable[[str], None]  # of the class, as the others are

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = _with_connections(self.app, self.connections)
        self._header_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()
        if len(self.connections) > self.settings.most_connections():
            next(iter(self.waiting)).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self._answer_taken()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answer_timer = self.loop.call_later(ANSWER_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._answer_taken()

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.our_state not in (h11.IDLE, h11.DONE):
            self._expect_nothing()
        elif self.timeout_keep_alive_task is None and self._header_timer is None:
            self._expect_headers()  # or the rest of a body that was answered without it

    def send_400_response(self, msg: str) -> None:
        """Tells of what h11 refused; called while its error is handled."""
        error = sys.exception()
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY):
            self.cycle.disconnected = True  # its body is broken: the application is not to answer
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send(
                HeadersTooLarge(TOO_LARGE)
                if hint == HeadersTooLarge.status
                else MalformedRequest("wanted a well-formed HTTP/1.1 request")
            )
        self.transport.close()

    def _send(self, problem: Problem) -> None:
        request_id = uuid.uuid4().hex
        document = problem_body(problem, request_id)
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
            reason=STATUS_PHRASES[problem.status],
        )
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.refused(problem.code)

    def _expect_headers(self) -> None:
        self._expect_nothing()
        self.waiting[self] = None
        self._header_timer = self.loop.call_later(
            self.settings.header_timeout_s, self.transport.abort
        )

    def _expect_nothing(self) -> None:
        self.waiting.pop(self, None)
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _answer_taken(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None


class ConnectionLimitsMiddleware:
    """Answers 431 to headers that are too large, and 503 while too many connections are open.

    h11 measures headers only while they are incomplete: those that come in one piece pass it.
    Probes are answered however many connections there are.
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
            problem = Overloaded("too many connections are open", RETRY_AFTER_S)
            app = problem_response(problem, state["request_id"], closes=True)
        await app(scope, receive, send)


def header_bytes(scope: Scope) -> int:
    """The size of a request's target, header names and header values."""
    target = len(scope["raw_path"]) + len(scope["query_string"])
    return target + sum(len(name) + len(value) for name, value in scope["headers"])


def _with_connections(app: Any, connections: set[Any]) -> Any:
    """The application, told with each request how many connections are open."""

    async def told(scope: Any, receive: Any, send: Any) -> None:
        scope["state"][OPEN_CONNECTIONS] = len(connections)
        await app(scope, receive, send)

    return told

"""The phase of the process, and the gate and the server that act by it."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType, MappingProxyType
from typing import Literal

import uvicorn
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eulerlora_contract.answers import ServiceStatus
from eulerlora_contract.problems import NotReady
from service.http.responses import ProblemBody, problem_response
from service.settings import STOP_MARGIN_S, LifeSettings
from service.telemetry.logs import RequestIdMiddleware, request_id_of
from service.telemetry.metrics import start_metrics
from service.telemetry.stderr import exit_now

Phase = Literal["starting", "ready", "stopping"]
METRICS_PATH = "/metrics"
ALIVE = {"/livez": ServiceStatus(status="alive").model_dump(), "/v2/health/live": {"live": True}}
RETRY_AFTER_S = 5


class Lifecycle:
    """The phase of the process and, after a failure, its reason. Thread-safe.

    The phase only advances: starting, ready, stopping.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may run while this thread holds it
        self._phase: Phase = "starting"
        self._failure: str | None = None

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self._phase

    @property
    def failure(self) -> str | None:
        """The reason of the first failure, or None."""
        return self._failure

    def become_ready(self) -> None:
        """Changes the phase from starting to ready; has no effect in another phase."""
        with self._lock:
            if self._phase == "starting":
                self._phase = "ready"

    def stop(self) -> None:
        """Requests a normal exit."""
        with self._lock:
            self._phase = "stopping"

    def fail(self, reason: str) -> None:
        """Requests an exit with an error. Only the first reason is stored."""
        with self._lock:
            self._phase = "stopping"
            self._failure = self._failure or reason


class Gate:
    """An ASGI application that forwards requests to the service while its models are healthy.

    Before `open`, and after a failed health check, it answers with 503; the liveness probes are
    always 200, and /metrics says that the service is not ready, so that an alert finds a process
    stuck in start. During a normal shutdown it still forwards requests and closes connections.

    Args:
        bodies: Of problems, as in `add_problem_handlers`.
    """

    def __init__(
        self, lifecycle: Lifecycle, bodies: Mapping[str, ProblemBody] = MappingProxyType({})
    ) -> None:
        self._bodies = bodies
        self._application: ASGIApp | None = None
        self._count_problem: Callable[[str], None] | None = None
        self._lifecycle = lifecycle
        self._metrics = start_metrics()
        self._respond = RequestIdMiddleware(self._respond_alone)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._application is None or self._refusal(scope["path"]) is not None:
            await self._respond(scope, receive, send)
        else:
            await self._application(scope, receive, self._closing(send))

    @property
    def is_open(self) -> bool:
        """True once there is an application; the lifecycle may still refuse requests."""
        return self._application is not None

    def open(self, application: ASGIApp, count_problem: Callable[[str], None]) -> None:
        """Forwards requests to `application` from now on.

        `count_problem`: counts the code of a problem that the application did not answer.
        """
        self._application = application
        self._count_problem = count_problem

    def count_problem(self, code: str) -> None:
        """Counts a problem that the protocol answered; has no effect before `open`."""
        if self._count_problem is not None:
            self._count_problem(code)

    def _refusal(self, path: str) -> NotReady | None:
        if path in ALIVE or path == METRICS_PATH:
            return None
        if self._lifecycle.phase == "starting":
            return NotReady("the models are being loaded", RETRY_AFTER_S)
        if self._lifecycle.failure is not None:
            return NotReady("a health check failed; the service is stopping", RETRY_AFTER_S)
        if self._lifecycle.phase == "stopping" and not self.is_open:
            return NotReady("the service is stopping")
        return None

    def _closing(self, send: Send) -> Send:
        """Adds `Connection: close` to a response during shutdown (RFC 9112, 9.6).

        Without it a client would send its next request on a connection that is about to close.
        """

        async def send_closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._lifecycle.phase == "stopping":
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        return send_closing

    async def _respond_alone(self, scope: Scope, receive: Receive, send: Send) -> None:
        response: Response
        request = Request(scope)
        refusal = self._refusal(scope["path"])
        if refusal is not None:
            response = problem_response(refusal, request_id_of(request), bodies=self._bodies)
        elif scope["path"] == METRICS_PATH:
            text = self._metrics(request.headers.get("Accept", ""))
            response = Response(text.content, headers={"Content-Type": text.content_type})
        else:
            response = JSONResponse(ALIVE[request.url.path])
        response.headers["Connection"] = "close"  # the headers were not checked for two lengths
        await response(scope, receive, send)


class Server(uvicorn.Server):
    """Stops at the first SIGTERM or SIGINT, or when the lifecycle is stopping.

    The server accepts requests for the drain time (not after a failure); then uvicorn stops
    listening, completes the accepted requests and ends the application's lifespan. It cancels
    requests that are not complete shortly before the grace time has passed, which
    `check_consistency` excludes for accepted ones. A second signal ends the process at once. A
    timer ends the process if the shutdown is not complete after the grace time.
    """

    def __init__(
        self, config: uvicorn.Config, lifecycle: Lifecycle, settings: LifeSettings
    ) -> None:
        complete_s = max(0, settings.grace_s - settings.drain_s - STOP_MARGIN_S)
        config.timeout_graceful_shutdown = complete_s  # type: ignore[assignment]  # floats work too
        super().__init__(config)
        self._lifecycle = lifecycle
        self._settings = settings
        self._signalled = False
        self._drain_ends: float | None = None
        self._forced_exit = threading.Timer(settings.grace_s, self._exit)
        self._forced_exit.daemon = True

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until the server has stopped."""
        try:
            super().run(sockets)
        finally:
            self._forced_exit.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles SIGTERM and SIGINT."""
        if self._signalled:
            exit_now(128 + sig)
        self._signalled = True
        self._lifecycle.stop()

    async def on_tick(self, counter: int) -> bool:
        """Returns True if the server should stop; uvicorn calls it ten times per second."""
        if self._lifecycle.phase == "stopping":
            self._drain()
        return await super().on_tick(counter)

    def _drain(self) -> None:
        if self._drain_ends is None:
            self._drain_ends = time.monotonic() + self._settings.drain_s
            self._forced_exit.start()
        if self._lifecycle.failure is not None or time.monotonic() >= self._drain_ends:
            self.should_exit = True

    def _exit(self) -> None:
        reason = self._lifecycle.failure or "the shutdown did not complete in time"
        print(f"eulerlora: {reason}", file=sys.stderr)
        exit_now(1)

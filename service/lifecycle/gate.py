"""The gate in front of the application: it follows the lifecycle."""

from collections.abc import Callable

from fastapi.responses import JSONResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eulerlora_client.contract.answers import ServiceStatus
from eulerlora_client.contract.problems import NotReady
from service.http.responses import problem_response
from service.lifecycle.phase import Lifecycle
from service.telemetry.metrics import start_metrics
from service.telemetry.request_id import RequestIdMiddleware, request_id_of

METRICS = "/metrics"
ALIVE = {"/livez": ServiceStatus(status="alive").model_dump(), "/v2/health/live": {"live": True}}
READY = ("/readyz", "/v2/health/ready")
RETRY_AFTER_S = 5


class Gate:
    """An ASGI application that forwards requests to the service while its models are healthy.

    Before `open`, and after a failed health check, it answers with 503; the liveness probes are
    always 200, and /metrics says that the service is not ready, so that an alert finds a process
    stuck in start. During a normal shutdown it still forwards requests and closes connections.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
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

        count_problem: counts the code of a problem that the application did not answer.
        """
        self._application = application
        self._count_problem = count_problem

    def count_problem(self, code: str) -> None:
        """Counts a problem that the protocol answered; has no effect before `open`."""
        if self._count_problem is not None:
            self._count_problem(code)

    def _refusal(self, path: str) -> NotReady | None:
        """Returns the problem to answer a request with, or None to forward it."""
        if path in ALIVE or path == METRICS:
            return None
        if self._lifecycle.phase == "starting":
            return NotReady("the models are being loaded", RETRY_AFTER_S)
        if self._lifecycle.failure is not None:
            return NotReady("a health check failed; the service is stopping", RETRY_AFTER_S)
        if self._lifecycle.phase == "stopping" and (not self.is_open or path in READY):
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
            response = problem_response(refusal, request_id_of(request))
        elif scope["path"] == METRICS:
            text = self._metrics(request.headers.get("Accept", ""))
            response = Response(text.content, headers={"Content-Type": text.content_type})
        else:
            response = JSONResponse(ALIVE[request.url.path])
        response.headers["Connection"] = "close"  # the headers were not checked for two lengths
        await response(scope, receive, send)

"""The way to the application, which follows the process's life."""

from collections.abc import Callable

from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import NotReady
from service.http.problem_responses import problem_response
from service.lifecycle.phase import Lifecycle
from service.schemas import Status
from service.telemetry.request_id import RequestIdMiddleware, request_id_of

ALIVE, READY = "/livez", "/readyz"
RETRY_AFTER_S = 5


class Gate:
    """Lets requests through while the models are served and right.

    application: what serves the models, once they are loaded. Before that, and once a check has
    failed, the answer is 503; the process is alive all the time. On the way to a clean end
    requests still pass, and their connections are closed behind them. count: of the application,
    counts a problem by its code.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.application: ASGIApp | None = None
        self.count: Callable[[str], None] | None = None
        self._lifecycle = lifecycle
        self._answer = RequestIdMiddleware(self._answer_itself)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.application is None or self._refusal(scope["path"]) is not None:
            await self._answer(scope, receive, send)
        else:
            await self.application(scope, receive, self._closing(send))

    def refused(self, code: str) -> None:
        """Has a problem counted that was answered without coming this way."""
        if self.count is not None:
            self.count(code)

    def _refusal(self, path: str) -> NotReady | None:
        """Why a request may not pass."""
        if path == ALIVE:
            return None
        if self._lifecycle.phase == "starting":
            return NotReady("the models are being loaded", RETRY_AFTER_S)
        if self._lifecycle.failure is not None:
            return NotReady("a check of the models has failed; the service ends", RETRY_AFTER_S)
        if self._lifecycle.phase == "stopping" and (self.application is None or path == READY):
            return NotReady("the service is stopping")
        return None

    def _closing(self, send: Send) -> Send:
        """Tells that the connection is closed behind a response (RFC 9112, 9.6), once it will be.

        A client that is not told sends its next request into the closing connection.
        """

        async def send_closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._lifecycle.phase == "stopping":
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        return send_closing

    async def _answer_itself(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope["path"])
        if refusal is None:
            response = JSONResponse(Status(status="alive").model_dump())
        else:
            response = problem_response(refusal, request_id_of(Request(scope)))
        await response(scope, receive, send)

"""Retries in Ray's HTTP proxies of requests whose replica was lost.

A prediction has no side effects and its seed is derived from the image, so the same request to
another replica has the same answer. Ray itself answers such a request with 500. For `ray start`,
set `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=eulerlora_lab.ray_serve.retry.middlewares`.
"""

import asyncio

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eulerlora_contract.problems import NotReady
from service.http.responses import ProblemResponse, problem_headers
from service.telemetry.logs import REQUEST_ID_HEADER, request_id_of

_ATTEMPTS = 5
_PAUSE_S = 0.5
"""Time before another attempt; Ray then knows which replica is lost."""
_MAX_BYTES = 32 * 1024 * 1024
"""Longest body that is kept for another attempt; the limit on a body with one image is 20 MB."""
_RETRY_AFTER_S = 5


def middlewares() -> list[Middleware]:
    """The middlewares of a proxy."""
    return [Middleware(_RetryMiddleware)]


class _RetryMiddleware:
    """Sends a request again if the application ends or fails without the start of a response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body, response = _RepeatableBody(receive), _ObservedResponse(send)
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_PAUSE_S)
            try:
                await self.app(dict(scope), body.replay(), response.send)
            except Exception:
                if response.is_started or not body.is_repeatable:
                    raise
            if response.is_started or not body.is_repeatable:
                return
        problem = NotReady("every replica that had the request was lost", _RETRY_AFTER_S)
        request_id = request_id_of(scope)
        headers = {**problem_headers(problem, closes=True), REQUEST_ID_HEADER: request_id}
        await ProblemResponse(problem, request_id, headers)(scope, receive, send)


class _RepeatableBody:
    """The body of a request, which can be received again from its beginning."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._received: list[Message] = []
        self._bytes = 0
        self._is_disconnected = False

    @property
    def is_repeatable(self) -> bool:
        """True while the client waits and the body is not too long to keep."""
        return not self._is_disconnected and self._bytes <= _MAX_BYTES

    def replay(self) -> Receive:
        """A function that receives the body from its beginning."""
        position = 0

        async def receive() -> Message:
            nonlocal position
            if position < len(self._received):
                position += 1
                return self._received[position - 1]
            message = await self._receive()
            if message["type"] != "http.request":
                self._is_disconnected = True
                return message
            self._bytes += len(message.get("body", b""))
            if self._bytes <= _MAX_BYTES:
                self._received.append(message)
                position += 1
            else:
                self._received.clear()
                position = 0
            return message

        return receive


class _ObservedResponse:
    """A response, and whether its headers have been sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_started = False

    async def send(self, message: Message) -> None:
        """Sends a message."""
        self.is_started = True
        await self._send(message)

"""Request ids: the one that the client sends if it is well-formed, otherwise a new one."""

import re
import uuid
from contextvars import ContextVar

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-ID"
WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,128}")

current_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that the current task or thread processes."""


class RequestIdMiddleware:
    """Stores the id in the request state and context, and adds it to the response headers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(HEADER, "")
        request_id = sent if WELL_FORMED.fullmatch(sent) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        # Not reset afterwards: uvicorn logs in the same task after this middleware has ended. The
        # next request overwrites the id.
        current_request_id.set(request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)


def request_id_of(request: Request) -> str:
    """Returns the id of a request that has passed RequestIdMiddleware."""
    request_id: str = request.state.request_id
    return request_id

"""Limits on request bodies: size, upload time, and the total size of what has arrived.

Violations that the headers show are refused before the body is read. Violations that occur while
the body arrives are raised where it is read.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eulerlora_client.contract.problems import BodyTooLarge, Overloaded, UploadTooSlow
from service.http.problem_responses import problem_response
from service.scheduling.clients import Flow, client_of
from service.scheduling.shared_capacity import SharedCapacity
from service.settings import BodySettings

RETRY_AFTER_S = 1.0


class BodyLimitsMiddleware:
    """Enforces the limits on request bodies.

    Bytes in flight are those that have arrived, not those that are announced. Clients share their
    limit as in SharedCapacity; a single body in flight may have any size within its limit. Must
    run inside RequestIdMiddleware and AccessMiddleware. max_bytes_by_path: size limits that replace
    the default limit of the settings.
    """

    def __init__(
        self, app: ASGIApp, settings: BodySettings, max_bytes_by_path: Mapping[str, int]
    ) -> None:
        self.app = app
        self._settings = settings
        self._max_bytes_by_path = max_bytes_by_path
        self._in_flight = SharedCapacity(settings.max_bytes_in_flight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = _declared_bytes(scope)
        if declared == 0:
            await self.app(scope, receive, send)
            return
        max_bytes = self._max_bytes_by_path.get(scope["path"], self._settings.max_bytes)
        body = _Body(receive, Flow(client_of(scope)), max_bytes, self._settings, self._in_flight)
        if declared is not None and declared > max_bytes:
            response = problem_response(
                _too_large(max_bytes), scope["state"]["request_id"], closes=True
            )
            await response(scope, receive, send)
            return
        try:
            await self.app(scope, body.receive, body.closing(send))
        finally:
            self._in_flight.add(body.flow, -body.received)


@dataclass
class _Body:
    """An arriving body; `receive` raises BodyTooLarge, Overloaded and UploadTooSlow."""

    upstream: Receive
    flow: Flow
    max_bytes: int
    settings: BodySettings
    in_flight: SharedCapacity
    started: float = field(default_factory=time.monotonic)
    received: int = 0
    complete: bool = False
    overloaded: bool = False

    async def receive(self) -> Message:
        if self.complete:
            return await self.upstream()  # waits for the disconnect
        message = await self._receive_in_time()
        arrived = len(message.get("body", b""))
        if self.received + arrived > self.max_bytes:
            raise _too_large(self.max_bytes)
        if not self.in_flight.admits(self.flow, arrived):
            self.overloaded = True
            raise Overloaded("too many uploads of this client at the same time", RETRY_AFTER_S)
        self.received += arrived
        self.in_flight.add(self.flow, arrived)
        self.complete = not message.get("more_body", False)
        return message

    def closing(self, send: Send) -> Send:
        """Returns a `send` that ends the connection if the body was not read for lack of space."""

        async def send_closing(message: Message) -> None:
            if self.overloaded and message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        return send_closing

    async def _receive_in_time(self) -> Message:
        remaining_s = self.started + self.settings.upload_timeout_s - time.monotonic()
        try:
            async with asyncio.timeout(min(remaining_s, self.settings.stall_timeout_s)):
                return await self.upstream()
        except TimeoutError as error:
            raise UploadTooSlow("the body did not arrive in time") from error


def _declared_bytes(scope: Scope) -> int | None:
    """Returns the declared length of the body; 0 without a body, None if it is unknown."""
    if scope["type"] != "http":
        return 0
    headers = Headers(scope=scope)
    if "transfer-encoding" in headers:
        return None
    length = headers.get("content-length", "0")
    return int(length) if length.isascii() and length.isdigit() else None


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"expected at most {max_bytes:,} bytes")

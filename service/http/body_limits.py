"""Limits on request bodies: size, upload time, and the total size of all uploads.

Violations that the headers show are refused before the body is read. Violations that occur while
the body arrives are raised where it is read.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eulerlora_client.contract.problems import BodyTooLarge, Overloaded, UploadTooSlow
from service.http.problem_responses import problem_response
from service.settings import BodySettings

RETRY_AFTER_S = 1.0


class BodyLimitsMiddleware:
    """Enforces the limits on request bodies.

    max_bytes_by_path: size limits that replace the default limit of the settings.
    """

    def __init__(
        self, app: ASGIApp, settings: BodySettings, max_bytes_by_path: Mapping[str, int]
    ) -> None:
        self.app = app
        self._settings = settings
        self._max_bytes_by_path = max_bytes_by_path
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = _declared_bytes(scope)
        if declared == 0:
            await self.app(scope, receive, send)
            return
        max_bytes = self._max_bytes_by_path.get(scope["path"], self._settings.max_bytes)
        reserved = max_bytes if declared is None else declared
        problem = self._problem(reserved, max_bytes)
        if problem is not None:
            response = problem_response(problem, scope["state"]["request_id"], closes=True)
            await response(scope, receive, send)
            return
        self._in_flight += reserved
        try:
            await self.app(scope, _Body(receive, max_bytes, self._settings).receive, send)
        finally:
            self._in_flight -= reserved

    def _problem(self, reserved: int, max_bytes: int) -> BodyTooLarge | Overloaded | None:
        if reserved > max_bytes:
            return _too_large(max_bytes)
        if self._in_flight + reserved > self._settings.max_bytes_in_flight:
            return Overloaded("too many uploads at the same time", RETRY_AFTER_S)
        return None


@dataclass
class _Body:
    """An arriving body; `receive` raises BodyTooLarge and UploadTooSlow."""

    upstream: Receive
    max_bytes: int
    settings: BodySettings
    started: float = field(default_factory=time.monotonic)
    received: int = 0
    complete: bool = False

    async def receive(self) -> Message:
        if self.complete:
            return await self.upstream()  # waits for the disconnect
        message = await self._receive_in_time()
        self.received += len(message.get("body", b""))
        if self.received > self.max_bytes:
            raise _too_large(self.max_bytes)
        self.complete = not message.get("more_body", False)
        return message

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

"""Bodies are bounded before they are read: in size, in time, and all together.

What is known from the headers is answered here; what comes to light while a body arrives is raised
where it is read, and becomes a problem document like any other.
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
    """Lets bodies through within their limits.

    max_bytes_by_path: for paths whose bodies have another limit than the settings' own.
    """

    def __init__(
        self, app: ASGIApp, settings: BodySettings, max_bytes_by_path: Mapping[str, int]
    ) -> None:
        self.app = app
        self._settings = settings
        self._max_bytes_by_path = max_bytes_by_path
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        expected = _expected_bytes(scope)
        if expected == 0:
            await self.app(scope, receive, send)
            return
        max_bytes = self._max_bytes_by_path.get(scope["path"], self._settings.max_bytes)
        reserved = max_bytes if expected is None else expected
        refusal = self._refusal(reserved, max_bytes)
        if refusal is not None:
            response = problem_response(refusal, scope["state"]["request_id"], closes=True)
            await response(scope, receive, send)
            return
        self._in_flight += reserved
        try:
            await self.app(scope, _Body(receive, max_bytes, self._settings).receive, send)
        finally:
            self._in_flight -= reserved

    def _refusal(self, reserved: int, max_bytes: int) -> BodyTooLarge | Overloaded | None:
        if reserved > max_bytes:
            return _too_large(max_bytes)
        if self._in_flight + reserved > self._settings.max_bytes_in_flight:
            return Overloaded("too many uploads are in flight", RETRY_AFTER_S)
        return None


@dataclass
class _Body:
    """A body as it arrives. Its `receive` raises BodyTooLarge and UploadTooSlow."""

    upstream: Receive
    max_bytes: int
    settings: BodySettings
    started: float = field(default_factory=time.monotonic)
    received: int = 0
    complete: bool = False

    async def receive(self) -> Message:
        if self.complete:
            return await self.upstream()  # a disconnect, whenever it may come
        message = await self._within_time()
        self.received += len(message.get("body", b""))
        if self.received > self.max_bytes:
            raise _too_large(self.max_bytes)
        self.complete = not message.get("more_body", False)
        return message

    async def _within_time(self) -> Message:
        left_s = self.started + self.settings.upload_timeout_s - time.monotonic()
        try:
            async with asyncio.timeout(min(left_s, self.settings.stall_timeout_s)):
                return await self.upstream()
        except TimeoutError as error:
            raise UploadTooSlow("the body did not arrive in time") from error


def _expected_bytes(scope: Scope) -> int | None:
    """The length of a request's body; None where it is not told before its end."""
    if scope["type"] != "http":
        return 0
    headers = Headers(scope=scope)
    if "transfer-encoding" in headers:
        return None
    declared = headers.get("content-length", "0")
    return int(declared) if declared.isascii() and declared.isdigit() else None


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"at most {max_bytes:,} bytes are read")

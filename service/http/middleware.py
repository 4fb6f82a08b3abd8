"""Checks of a request's target and headers, before its body is read.

Admission: refuses requests from their headers if their client has used up its share.

Limits on request bodies: size, upload time, and the total size of what has arrived.

Violations that the headers show are refused before the body is read. Violations that occur while
the body arrives are raised where it is read.
"""

import asyncio
import time
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eulerlora_client.contract.problems import (
    BodyTooLarge,
    ForeignOrigin,
    HeadersTooLarge,
    MalformedRequest,
    MisdirectedRequest,
    NotReady,
    Overloaded,
    Problem,
    QuotaExceeded,
    UploadTooSlow,
)
from service.decoding.slots import DecodingQuota
from service.http.responses import problem_response
from service.inference.fair_sharing import Flow, SharedCapacity, client_of
from service.inference.queue import RequestQueue
from service.settings import BodySettings, ConnectionSettings
from service.telemetry.observation import PROBES

OPEN_CONNECTIONS = "open_connections"  # key in the request state
MAX_HEADER_BYTES = 16 * 1024  # of target, header names and header values
TOO_LARGE = f"expected headers of at most {MAX_HEADER_BYTES:,} bytes"
RETRY_AFTER_S = 1.0


@dataclass(frozen=True)
class HostRules:
    """The hosts and origins that requests may name; the probes are exempt.

    hosts: names without a port, in lower case; None for all. same_origin: refuse requests that
    another site's page sends through a visitor's browser, which needs no key to do so.
    """

    hosts: Collection[str] | None = None
    same_origin: bool = False

    def problem(self, headers: Headers) -> Problem | None:
        """Returns the problem with the headers Host and Origin, or None."""
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if self.hosts is not None and hostname(host) not in self.hosts:
            return MisdirectedRequest(
                "expected a host name of this service (setting ALLOWED_HOSTS)"
            )
        if self.same_origin and origin is not None and urlsplit(origin.lower()).netloc != host:
            return ForeignOrigin("expected a request from the page of this service")
        return None


class HeadersMiddleware:
    """Refuses requests by their headers; must run inside RequestIdMiddleware.

    431: too large; h11 limits only incomplete headers, so that headers that arrive in one piece are
    checked here. 400: two lengths of the body, of which a proxy may have used the other one (RFC
    9112, 6.3). 421 and 403: `HostRules`. 503: too many connections, except for probes.
    """

    def __init__(
        self, app: ASGIApp, settings: ConnectionSettings, rules: HostRules = HostRules()
    ) -> None:
        self.app = app
        self._settings = settings
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        problem = self._problem(scope) if scope["type"] == "http" else None
        if problem is not None:
            app = problem_response(problem, scope["state"]["request_id"], closes=True)
        await app(scope, receive, send)

    def _problem(self, scope: Scope) -> Problem | None:
        headers = Headers(scope=scope)
        if header_bytes(scope) > MAX_HEADER_BYTES:
            return HeadersTooLarge(TOO_LARGE)
        if "content-length" in headers and "transfer-encoding" in headers:
            return MalformedRequest("expected Content-Length or Transfer-Encoding, got both")
        if scope["path"] in PROBES:
            return None
        if scope["state"].get(OPEN_CONNECTIONS, 0) > self._settings.max_connections:
            return Overloaded("too many open connections", RETRY_AFTER_S)
        return self._rules.problem(headers)


class HeadMiddleware:
    """Answers HEAD as GET (RFC 9110, 9.3.2); the server omits the body.

    Must be the innermost middleware: the others record the method that was sent.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        inner = {**scope, "method": "GET"}
        try:
            await self.app(inner, receive, send)
        finally:
            if "route" in inner:
                scope["route"] = inner["route"]  # for observation


def header_bytes(scope: Scope) -> int:
    """Returns the total size of target, header names and header values."""
    target = len(scope["raw_path"]) + len(scope["query_string"])
    return target + sum(len(name) + len(value) for name, value in scope["headers"])


def hostname(host: str) -> str:
    """Returns a Host header without its port and without the brackets of an IPv6 address."""
    name = host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.removeprefix("[").removesuffix(".")


class AdmissionMiddleware:
    """Refuses requests of `paths` whose client has no capacity for one more row.

    The response is 503; it is 429 for a client that has used up its decoding time. The body is not
    read. Under overload most requests end here, at minimal cost. The rows of an admitted request
    are reserved later, by `RequestQueue.reserve`, when they are known. Must run inside
    RequestIdMiddleware and AccessMiddleware.
    """

    def __init__(
        self, app: ASGIApp, queue: RequestQueue, quota: DecodingQuota, paths: Container[str]
    ) -> None:
        self.app = app
        self._queue = queue
        self._quota = quota
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http" and scope["path"] in self._paths:
            client = client_of(scope)
            try:
                self._quota.check(client)
                self._queue.check_capacity(Flow(client))
            except (Overloaded, NotReady, QuotaExceeded) as problem:
                app = problem_response(problem, scope["state"]["request_id"])
        await app(scope, receive, send)


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

"""The middleware that refuses requests before their body is read, limits bodies, answers defects.

Here is the check of headers; `app.py` adds those of the phase, of keys and of the capacity.
"""

import asyncio
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eulerlora_contract.problems import (
    BodyTooLarge,
    ForeignOrigin,
    HeadersTooLarge,
    MalformedRequest,
    MisdirectedRequest,
    NotFound,
    Overloaded,
    Problem,
    UnsupportedMedia,
    UploadTooSlow,
)
from service.fair_sharing import SharedCapacity, ShareExceeded, client_of
from service.http.responses import (
    SEE_DOCUMENTATION,
    ProblemResponse,
    on_defect,
    problem_headers,
)
from service.settings import BodySettings
from service.telemetry.observation import PROBES

EXCESS_CONNECTION = "excess_connection"  # key in the request state
MAX_HEADER_BYTES = 16 * 1024  # of target, header names and header values
TOO_LARGE = f"expected headers of at most {MAX_HEADER_BYTES:,} bytes"
_RETRY_AFTER_S = 1.0
_ORIGIN = re.compile(r"(https?)://([^/?#@]*)")  # RFC 6454, 7.1
_AUTHORITY = re.compile(r"(\[[^]]+\]|[^:]+)(?::([0-9]*))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}

Check = Callable[[Scope], None]
"""Raises a Problem if the headers of a request show that it must be refused."""
_BODIES = BodySettings()


class RequestMiddleware:
    """Refuses requests before their body is read, limits bodies, and answers defects.

    A defect (an unexpected exception) is answered with a problem document; otherwise Starlette
    would raise it again after its response, and uvicorn would log it a second time and close the
    connection. An exception after the start of a response is still raised.

    HEAD is answered as GET (RFC 9110, 9.3.2); the server omits the body. This must be the innermost
    middleware, because the others record the method that was sent.

    Args:
        hosts: Names without a port that requests may use, in lower case; None for all.
        same_origin: Refuse requests that another site's page sends through a visitor's browser,
            which needs no key to do so.
        checks: Run after those of what every request has.
        bodies: Limits on bodies.
        max_bytes_by_path: Size limits that replace the default limit of `bodies`.
        is_closing: True if responses close their connection (RFC 9112, 9.6): a client would send
            its next request on one that is about to close.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str] | None = None,
        same_origin: bool = False,
        checks: Sequence[Check] = (),
        bodies: BodySettings = _BODIES,
        max_bytes_by_path: Mapping[str, int] = MappingProxyType({}),
        is_closing: Callable[[], bool] = lambda: False,
    ) -> None:
        self.app = app
        # Their refusals close the connection, because its next request may be part of this one.
        self._header_checks = _HeaderChecks(hosts, same_origin)
        self._checks = checks
        self._bodies = _BodyLimits(bodies, max_bytes_by_path)
        self._is_closing = is_closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        closes: bool | None = True
        try:
            self._header_checks(scope)
            closes = None  # as is usual for the problem
            for check in self._checks:
                check(scope)
            body = self._bodies.body_of(scope, receive)
        except Problem as problem:
            headers = problem_headers(problem, closes or self._is_closing() or None)
            refusal = ProblemResponse(problem, scope["state"]["request_id"], headers)
            await refusal(scope, receive, send)
            return
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        started = False

        async def tracking_send(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] == "http.response.start" and (body.overloaded or self._is_closing()):
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        try:
            await self.app(inner, body.receive, tracking_send)
        except Exception as error:
            if started:
                raise
            response = await on_defect(Request(scope), error)
            await response(scope, receive, tracking_send)
        finally:
            body.release()
            if "route" in inner:
                scope["route"] = inner["route"]  # for observation


@dataclass(frozen=True)
class _HeaderChecks:
    """Checks of what every request has: its headers, and the connection that it arrived on.

    404: an address that ends with a line feed, which Starlette's patterns ignore, but not limits by
    address. 431: too large; h11 limits only incomplete headers, so that headers that arrive in one
    piece are checked here. 400: two lengths of the body, of which a proxy may have used the
    other one (RFC 9112, 6.3). 415: a compressed body. Except for probes, 503: too many connections
    of its address; 421 and 403: the host and the origin.

    Attributes:
        hosts: As of RequestMiddleware.
        same_origin: As of RequestMiddleware.
    """

    hosts: Collection[str] | None
    same_origin: bool

    def __call__(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        target_bytes = len(scope["raw_path"]) + len(scope["query_string"])
        header_bytes = sum(len(name) + len(value) for name, value in headers.raw)
        if target_bytes + header_bytes > MAX_HEADER_BYTES:
            raise HeadersTooLarge(TOO_LARGE)
        if "content-length" in headers and "transfer-encoding" in headers:
            raise MalformedRequest("expected Content-Length or Transfer-Encoding, got both")
        if headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
            raise UnsupportedMedia("expected a body that is not compressed (Content-Encoding)")
        if scope["path"].endswith("\n"):
            raise NotFound(SEE_DOCUMENTATION)
        if scope["path"] in PROBES:
            return
        if scope["state"].get(EXCESS_CONNECTION):
            raise ShareExceeded("too many open connections of this address", _RETRY_AFTER_S)
        host, origins = headers.get("host", "").lower(), headers.getlist("origin")
        if self.hosts is not None and _hostname(host) not in self.hosts:
            raise MisdirectedRequest("expected a host name of this service (setting ALLOWED_HOSTS)")
        if self.same_origin and not all(_is_origin_of(origin.lower(), host) for origin in origins):
            raise ForeignOrigin("expected a request from the page of this service")


class _BodyLimits:
    """Limits on request bodies: size, upload time, and the total size of what has arrived.

    Bytes in flight are those that have arrived, not those that are announced. Clients share their
    limit as in SharedCapacity; a single body in flight may have any size within its limit.
    """

    def __init__(self, settings: BodySettings, max_bytes_by_path: Mapping[str, int]) -> None:
        self._settings = settings
        self._max_bytes_by_path = max_bytes_by_path
        self._in_flight = SharedCapacity(settings.max_bytes_in_flight)

    def body_of(self, scope: Scope, receive: Receive) -> "_Body":
        """The body of a request, which is not read yet.

        Raises:
            BodyTooLarge: If its announced size is too large.
        """
        headers, declared = Headers(scope=scope), None  # unknown
        if "transfer-encoding" not in headers:
            length = headers.get("content-length", "0")
            declared = int(length) if length.isascii() and length.isdigit() else None
        max_bytes = self._max_bytes_by_path.get(scope["path"], self._settings.max_bytes)
        if declared is not None and declared > max_bytes:
            raise _too_large(max_bytes)
        return _Body(
            receive, client_of(scope), max_bytes, self._settings, self._in_flight, declared == 0
        )


@dataclass
class _Body:
    """An arriving body.

    Attributes:
        complete: Nothing of it is to come.
        overloaded: It was not read for lack of space, so that the connection must end.
    """

    upstream: Receive
    client: str
    max_bytes: int
    settings: BodySettings
    in_flight: SharedCapacity
    complete: bool = False
    overloaded: bool = False
    received: int = 0
    started: float = field(default_factory=time.monotonic)

    async def receive(self) -> Message:
        """The ASGI function: awaits the next message.

        Raises:
            BodyTooLarge: If more than `max_bytes` arrive.
            Overloaded: If the bodies in flight leave no space for this client.
            UploadTooSlow: If the message does not arrive in time.
        """
        if self.complete:
            return await self.upstream()  # waits for the disconnect
        remaining_s = self.started + self.settings.upload_timeout_s - time.monotonic()
        try:
            async with asyncio.timeout(min(remaining_s, self.settings.stall_timeout_s)):
                message = await self.upstream()
        except TimeoutError as error:
            raise UploadTooSlow("the body did not arrive in time") from error
        arrived = len(message.get("body", b""))
        if self.received + arrived > self.max_bytes:
            raise _too_large(self.max_bytes)
        is_alone = self.in_flight.total == self.received
        if not is_alone and self.in_flight.utilization(self.client, arrived) > 1:
            self.overloaded = True
            raise Overloaded("too many uploads of this client at the same time", _RETRY_AFTER_S)
        self.received += arrived
        self.in_flight.add(self.client, arrived)
        self.complete = not message.get("more_body", False)
        return message

    def release(self) -> None:
        self.in_flight.add(self.client, -self.received)


def _hostname(host: str) -> str:
    """A Host header without its port and without the brackets of an IPv6 address."""
    name = host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.removeprefix("[").removesuffix(".")


def _is_origin_of(origin: str, host: str) -> bool:
    """Compares an Origin header, in lower case, with the host and port of a Host header.

    A Host without a port has the default one of the origin's scheme: a proxy may end TLS.
    """
    match = _ORIGIN.fullmatch(origin)
    if match is None:
        return False
    scheme, authority = match.groups()
    named = _host_and_port(authority, _DEFAULT_PORTS[scheme])
    return named is not None and named == _host_and_port(host, _DEFAULT_PORTS[scheme])


def _host_and_port(authority: str, default_port: str) -> tuple[str, str] | None:
    """Name and port of an authority (RFC 3986, 3.2); None if it is malformed."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        return None
    return _hostname(match[1]), match[2] or default_port


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"expected at most {max_bytes:,} bytes")

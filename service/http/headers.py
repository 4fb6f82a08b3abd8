"""Checks of a request's target and headers, before its body is read."""

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from eulerlora_client.contract.problems import (
    ForeignOrigin,
    HeadersTooLarge,
    MalformedRequest,
    MisdirectedRequest,
    Overloaded,
    Problem,
)
from service.http.problem_responses import problem_response
from service.settings import ConnectionSettings
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

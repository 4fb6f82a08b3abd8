"""Who may ask, and how often: decided from the head of a request, before any of its body."""

import time
from collections.abc import Iterable

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import MovingWindowRateLimiter
from starlette.types import ASGIApp, Receive, Scope, Send

from service.auth.key_file import Client
from service.auth.keys import Keys
from service.errors import NotAuthenticated, Problem, QuotaExceeded
from service.http.problem_responses import problem_response

OPEN_PATHS = frozenset({"/", "/docs", "/openapi.json", "/livez", "/readyz", "/metrics"})
OPEN_FOLDERS = ("/page/",)


class AccessMiddleware:
    """Lets requests with a known key pass, no more of them a minute than the client may make.

    The client's name goes into the request's state as `client`. One request counts as one, a
    batch too: how many images it holds is not known before its body is read, and the limit on
    the body bounds them. What was refused here is not counted. Needs RequestIdMiddleware outside
    of it.
    """

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self.app = app
        self._keys = keys
        self._quotas = Quotas()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_open(scope["path"]):
            await self.app(scope, receive, send)
            return
        try:
            client = await self._admitted(scope["headers"])
        except Problem as problem:
            refusal = problem_response(problem, scope["state"]["request_id"])
            await refusal(scope, receive, send)
            return
        scope["state"]["client"] = client.client
        await self.app(scope, receive, send)

    async def _admitted(self, headers: Iterable[tuple[bytes, bytes]]) -> Client:
        client = self._keys.client_of(shown_key(headers))
        if client is None:
            raise NotAuthenticated("the key is not one that is known")
        await self._quotas.count(client)
        return client


class Quotas:
    """How often each client asked within the last minute; in memory, of this process alone."""

    def __init__(self) -> None:
        self._window = MovingWindowRateLimiter(MemoryStorage())

    async def count(self, client: Client) -> None:
        """Counts one request. Raises QuotaExceeded where it is one too many."""
        if client.requests_per_minute is None:
            return
        limit = RateLimitItemPerMinute(client.requests_per_minute)
        if not await self._window.hit(limit, client.client):
            window = await self._window.get_window_stats(limit, client.client)
            raise QuotaExceeded(
                f"at most {client.requests_per_minute} requests a minute",
                retry_after_s=window.reset_time - time.time(),
            )


def is_open(path: str) -> bool:
    """Whether a path is served without a key: probes, metrics, the page and the description."""
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)


def shown_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The one key among a request's headers, as the bytes that came.

    `Authorization: Bearer KEY` (RFC 6750, 2.1; other schemes are somebody else's) or
    `X-API-Key: KEY`. Raises NotAuthenticated for none, and for more than one.
    """
    shown = []
    for name, value in headers:
        if name == b"x-api-key":
            shown.append(value.strip())
        elif name == b"authorization":
            scheme, _, credentials = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":  # schemes in any case: RFC 9110, 11.1
                shown.append(credentials.strip())
    if len(shown) != 1:
        raise NotAuthenticated(
            f"wanted one key, as Authorization: Bearer KEY or X-API-Key: KEY; found {len(shown)}"
        )
    return shown[0]

"""The check of a request's key and of its client's rate limit, before the body is read."""

import time
from collections.abc import Callable, Iterable

from starlette.types import Scope

from eulerlora_contract.problems import NotAuthenticated
from service.auth.keys import Keys
from service.fair_sharing import ClientQuota
from service.telemetry.observation import PROBES

_OPEN_PATHS = PROBES | {"/", "/docs", "/openapi.json"}
_OPEN_FOLDERS = ("/page/", "/docs/")
_KEY_HEADERS = {b"authorization", b"x-api-key"}


class KeyCheck:
    """Refuses requests without a valid key, and as the last check those above the rate limit.

    Stores the client in the request state as `key_client`, its name as `key_name`. A batch counts
    as one request: its number of images is unknown before the body is read, and is bounded by the
    body limits. Requests that a check refuses do not count. With a changed limit a client starts
    anew.

    Args:
        keys: Of the clients, with their limits.
        now: A clock in seconds that never goes back.
    """

    def __init__(self, keys: Keys, now: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._now = now
        self._quotas: dict[int, ClientQuota] = {}  # by requests a minute

    def __call__(self, scope: Scope) -> None:
        """Raises NotAuthenticated; removes the key from the scope.

        The memory of the process is to hold a key no longer than its check.
        """
        headers = scope["headers"]
        scope["headers"] = [header for header in headers if header[0] not in _KEY_HEADERS]
        if not needs_key(scope["path"]):
            return
        client = self._keys.client_with(_sent_key(headers))
        if client is None:
            raise NotAuthenticated("the key is unknown")
        scope["state"].update(key_client=client, key_name=client.client)

    def count(self, scope: Scope) -> None:
        """Counts a request of the client.

        Raises:
            QuotaExceeded: If the client has reached its limit.
        """
        client = scope["state"].get("key_client")
        if client is None or (limit := client.requests_per_minute) is None:
            return
        if limit not in self._quotas:
            self._quotas[limit] = ClientQuota(limit, "requests", self._now)
        self._quotas[limit].check(client.client, 1)
        self._quotas[limit].charge(client.client, 1)


def needs_key(path: str) -> bool:
    """False for probes, metrics, page and documentation."""
    return path not in _OPEN_PATHS and not path.startswith(_OPEN_FOLDERS)


def _sent_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key in the request headers as raw bytes.

    Accepts `Authorization: Bearer KEY` (RFC 6750, 2.1) and `X-API-Key: KEY`; ignores other
    authorization schemes. Raises NotAuthenticated for no key, and for more than one.
    """
    keys = []
    for name, value in headers:
        if name == b"x-api-key":
            keys.append(value.strip())
        elif name == b"authorization":
            scheme, _, credentials = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":  # case-insensitive, RFC 9110, 11.1
                keys.append(credentials.strip())
    if len(keys) != 1:
        raise NotAuthenticated(
            f"expected one key, as Authorization: Bearer KEY or X-API-Key: KEY; got {len(keys)}"
        )
    return keys[0]

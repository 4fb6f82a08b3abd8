"""Checks that refuse a client for what it already uses, before the body of a request is read."""

from collections.abc import Iterable

from starlette.routing import compile_path
from starlette.types import Scope

from service.auth.access import needs_key
from service.fair_sharing import ClientQuota, client_of
from service.http.middleware import Check
from service.inference.queue import RequestQueue
from service.telemetry.observation import PROBES


def page_check(per_minute: int) -> Check:
    """Limits what a client may ask for without a key, except for probes."""
    quota = ClientQuota(per_minute, "requests for the page and the documentation")

    def check(scope: Scope) -> None:
        if not needs_key(scope["path"]) and scope["path"] not in PROBES:
            client = client_of(scope)
            quota.check(client, 1)
            quota.charge(client, 1)

    return check


def capacity_check(queue: RequestQueue, quota: ClientQuota, paths: Iterable[str]) -> Check:
    """Refuses requests with images of a client without capacity for a row.

    Under overload most requests end here, at minimal cost. The rows of an admitted request are
    reserved later, by `RequestQueue.reserve`, when they are known.

    Args:
        queue: Of the rows; Overloaded if it has no capacity for the client.
        quota: Of decoding time; QuotaExceeded if the client has used it up.
        paths: Templates of the paths of such requests, with parameters in braces.
    """
    patterns = [compile_path(path)[0] for path in paths]

    def check(scope: Scope) -> None:
        if any(pattern.match(scope["path"]) for pattern in patterns):
            client = client_of(scope)  # after the check of the key
            quota.check(client)
            queue.check_capacity(client)

    return check

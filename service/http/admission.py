"""Admission: refuses requests from their headers if their client has used up its share."""

from collections.abc import Container

from starlette.types import ASGIApp, Receive, Scope, Send

from eulerlora_client.contract.problems import NotReady, Overloaded, QuotaExceeded
from service.http.problem_responses import problem_response
from service.inference.queue import RequestQueue
from service.scheduling.clients import Flow, client_of
from service.scheduling.decoding_quota import DecodingQuota


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

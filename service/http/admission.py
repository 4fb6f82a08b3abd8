"""Admission: refuses requests from their headers while the request queue is full."""

from collections.abc import Container

from starlette.types import ASGIApp, Receive, Scope, Send

from eulerlora_client.contract.problems import NotReady, Overloaded
from service.http.problem_responses import problem_response
from service.inference.queue import RequestQueue


class AdmissionMiddleware:
    """Refuses requests of `paths` with 503 while the queue has no capacity for one more row.

    The body is not read. Under overload most requests end here, at minimal cost. The rows of an
    admitted request are reserved later, by `RequestQueue.reserve`, when they are known. Must run
    inside RequestIdMiddleware.
    """

    def __init__(self, app: ASGIApp, queue: RequestQueue, paths: Container[str]) -> None:
        self.app = app
        self._queue = queue
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http" and scope["path"] in self._paths:
            try:
                self._queue.check_capacity()
            except (Overloaded, NotReady) as problem:
                app = problem_response(problem, scope["state"]["request_id"])
        await app(scope, receive, send)

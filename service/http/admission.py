"""Questions for which there is no room are refused from their head."""

from collections.abc import Container

from starlette.types import ASGIApp, Receive, Scope, Send

from eulerlora_client.contract.problems import NotReady, Overloaded
from service.http.problem_responses import problem_response
from service.inference.queue import RequestQueue


class AdmissionMiddleware:
    """Lets requests of `paths` through while another row would find room.

    Under a load that is far too high nearly every request ends here, with as little work as can
    be; whether all rows of a question have room is seen where they are known. Needs
    RequestIdMiddleware outside of it.
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

"""Observation of requests: their id, one log record, their metrics, and the times of their stages.

Methods and routes are those that are served, and parameters are those of the response. The path of
a request that matches no route is only in the log, bounded and escaped.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence

from starlette.datastructures import MutableHeaders
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eulerlora_contract.printable import printable
from eulerlora_contract.problems import InternalError
from service.telemetry.logs import REQUEST_ID_HEADER, current_request_id, request_id_of
from service.telemetry.metrics import Metrics
from service.telemetry.records import (
    CLIENT_CLOSED_REQUEST,
    OTHER,
    CompletedPrediction,
    RequestObservation,
)

logger = logging.getLogger(__name__)

_MAX_PATH_CHARACTERS = 200
"""Of an unknown path in a log record."""

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
PROBES = frozenset(("/livez", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"))
"""Paths that need no key and are not refused for their host or for too many connections. Their
requests are logged for debugging only.
"""


class ObservationMiddleware:
    """Observes every request, including those that a middleware responds to.

    Stores the id in the request state and context, and adds it to the headers of the response.
    Stores the `RequestObservation` in the request state as `observation`, to which the request adds
    its predictions; they get a Server-Timing header.

    Args:
        paths: Templates with parameters in braces, for requests that have not reached a route
            because a middleware has refused them.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Iterable[str]) -> None:
        self.app = app
        self._metrics = metrics
        self._templates = [(compile_path(path)[0], path) for path in paths]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started_s, is_disconnected = time.monotonic(), False
        observation = RequestObservation(scope["method"] if scope["method"] in _METHODS else OTHER)
        state = scope.setdefault("state", {})
        state["observation"] = observation
        state["request_id"] = request_id = request_id_of(scope)
        # Not reset afterwards: uvicorn logs in the same task after this middleware has ended. The
        # next request overwrites the id.
        current_request_id.set(request_id)

        async def observed_receive() -> Message:
            nonlocal is_disconnected
            message = await receive()
            observation.body_bytes += len(message.get("body", b""))
            is_disconnected |= message["type"] == "http.disconnect"
            return message

        async def observed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                observation.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = request_id
                if observation.predictions:
                    headers["Server-Timing"] = _server_timing(observation.predictions)
            await send(message)

        try:
            await self.app(scope, observed_receive, observed_send)
        except asyncio.CancelledError:
            is_disconnected = True
            raise
        except Exception:
            state["problem"] = InternalError.code
            raise
        finally:
            if observation.status is None:  # uvicorn sends 500 if it still can
                observation.status = CLIENT_CLOSED_REQUEST if is_disconnected else 500
            observation.route = self._route_of(scope)
            observation.problem, observation.key_name = state.get("problem"), state.get("key_name")
            observation.duration_s = time.monotonic() - started_s
            self._metrics.count_request(observation)
            _log(observation, scope["path"])

    def _route_of(self, scope: Scope) -> str:
        """The path template of a request; `other` for an unknown path."""
        routed = getattr(scope.get("route"), "path", None)
        if routed is not None:
            return routed or "/"  # a mount at the root has an empty path
        path = scope["path"]
        return next((template for regex, template in self._templates if regex.match(path)), OTHER)


def _server_timing(predictions: Sequence[CompletedPrediction]) -> str:
    """A Server-Timing header; of several predictions, the maximum of every stage."""
    longest = {
        name: max(completed.stages_s[name] for completed in predictions)
        for name in predictions[0].stages_s
    }
    return ", ".join(f"{name};dur={1000 * value:.2f}" for name, value in longest.items())


def _log(request: RequestObservation, path: str) -> None:
    level = logging.DEBUG if request.route in PROBES else logging.INFO
    if not logger.isEnabledFor(level):
        return
    unknown = None
    if request.route == OTHER:
        unknown = printable(path[: _MAX_PATH_CHARACTERS + 1])
        if len(unknown) > _MAX_PATH_CHARACTERS:
            unknown = unknown[: _MAX_PATH_CHARACTERS - 1] + "…"
    parts = (request.method, unknown or request.route, request.status, request.problem)
    fields = {
        "client": request.key_name,
        "method": request.method,
        "route": request.route,
        "path": unknown,
        "status": request.status,
        "problem": request.problem,
        "duration_s": round(request.duration_s, 6),
        "body_bytes": request.body_bytes,
        **request.parameters,
        "images": len(request.predictions) or None,
    }
    logger.log(
        level,
        " ".join("%s" for part in parts if part is not None),
        *(part for part in parts if part is not None),
        extra={name: value for name, value in fields.items() if value is not None},
    )

"""Observation of requests: one log record per request, and its metrics.

Only the log has something that the client chose: the path of a request that matches no route,
bounded and escaped. Methods and routes are those that are served, and parameters are those of the
response.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eulerlora_client.contract.answers import Disposition, Prediction
from eulerlora_client.contract.problems import InternalError
from eulerlora_client.printable import printable
from service.telemetry.metrics import (
    CLIENT_CLOSED_REQUEST,
    OTHER,
    CompletedPrediction,
    CompletedRequest,
    Metrics,
    Timing,
)

logger = logging.getLogger(__name__)

MAX_PATH_CHARACTERS = 200
"""Of an unknown path in a log record."""

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
PROBES = frozenset(("/livez", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"))
"""Paths that the headers of a request do not affect, and that are logged only for debugging."""


@dataclass
class RequestObservation:
    """The state of an observed request, stored in the request state as `observation`."""

    scope: Scope
    started_s: float = field(default_factory=time.monotonic)
    status: int | None = None
    client_disconnected: bool = False
    body_bytes: int = 0
    predictions: list[CompletedPrediction] = field(default_factory=list)
    completed: CompletedRequest | None = None


_current: ContextVar[RequestObservation | None] = ContextVar("observation", default=None)


class RequestObserver:
    """Counts and logs requests and their predictions."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def record_prediction(
        self, prediction: Prediction, timing: Timing, disposition: Disposition | None = None
    ) -> None:
        """Records a prediction; it is counted at the end of its request, or now without one."""
        completed = CompletedPrediction(prediction, timing, disposition, time.time_ns())
        if observation := _current.get():
            observation.predictions.append(completed)
        else:
            self._metrics.count_prediction(completed)

    def complete(self, observation: RequestObservation, route: str) -> None:
        """Counts and logs a completed request."""
        scope, status = observation.scope, observation.status
        if status is None:  # no response was started; uvicorn sends 500 if it still can
            status = CLIENT_CLOSED_REQUEST if observation.client_disconnected else 500
        completed = observation.completed = CompletedRequest(
            method=scope["method"] if scope["method"] in METHODS else OTHER,
            route=route,
            status=status,
            problem=scope["state"].get("problem"),
            duration_s=time.monotonic() - observation.started_s,
            body_bytes=observation.body_bytes,
            client="anonymous" if scope["state"].get("client") is None else "keyed",
        )
        for entry in observation.predictions:
            self._metrics.count_prediction(entry, completed.client)
        self._metrics.count_request(completed)
        _log(completed, observation)


class RouteTemplates:
    """Maps requests to path templates.

    paths: templates with parameters in braces, for requests that have not reached a route because
    a middleware has refused them.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._patterns = [(compile_path(path)[0], path) for path in paths]

    def of(self, scope: Scope) -> str:
        """Returns the template of a request, or `other` for an unknown path."""
        routed = getattr(scope.get("route"), "path", None)
        if routed is not None:
            return routed or "/"  # a mount at the root has an empty path
        path = scope["path"]
        return next((template for regex, template in self._patterns if regex.match(path)), OTHER)


def served_paths(app: FastAPI) -> tuple[str, ...]:
    """Returns the path templates of an application whose routes are complete."""
    return (*app.openapi()["paths"], *filter(None, [app.openapi_url]))


class ObservationMiddleware:
    """Observes every request, including those that a middleware responds to."""

    def __init__(self, app: ASGIApp, observer: RequestObserver, paths: Iterable[str]) -> None:
        self.app = app
        self.observer = observer
        self.templates = RouteTemplates(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        observation = RequestObservation(scope)
        scope.setdefault("state", {})["observation"] = observation
        token = _current.set(observation)

        async def observed_receive() -> Message:
            message = await receive()
            observation.body_bytes += len(message.get("body", b""))
            observation.client_disconnected |= message["type"] == "http.disconnect"
            return message

        async def observed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                observation.status = message["status"]
            await send(message)

        try:
            await self.app(scope, observed_receive, observed_send)
            await asyncio.sleep(0)  # lets uvloop send the response before it is logged
        except asyncio.CancelledError:
            observation.client_disconnected = True
            raise
        except Exception:
            scope["state"]["problem"] = InternalError.code
            raise
        finally:
            _current.reset(token)
            self.observer.complete(observation, self.templates.of(scope))


def _log(request: CompletedRequest, observation: RequestObservation) -> None:
    level = logging.DEBUG if request.route in PROBES else logging.INFO
    if not logger.isEnabledFor(level):
        return
    path = _unknown_path(observation.scope) if request.route == OTHER else None
    parts = (request.method, path or request.route, request.status, request.problem)
    fields = {
        "client": observation.scope["state"].get("client"),
        "method": request.method,
        "route": request.route,
        "path": path,
        "status": request.status,
        "problem": request.problem,
        "duration_s": round(request.duration_s, 6),
        "body_bytes": request.body_bytes,
        **_parameters(observation.predictions),
    }
    logger.log(
        level,
        " ".join("%s" for part in parts if part is not None),
        *(part for part in parts if part is not None),
        extra={name: value for name, value in fields.items() if value is not None},
    )


def _unknown_path(scope: Scope) -> str:
    """Returns the path, without its query, as printable text of bounded length."""
    path = printable(scope["path"][: MAX_PATH_CHARACTERS + 1])
    return path if len(path) <= MAX_PATH_CHARACTERS else path[: MAX_PATH_CHARACTERS - 1] + "…"


def _parameters(predictions: list[CompletedPrediction]) -> dict[str, Any]:
    """Returns the parameters of a request, which are the same for all of its images."""
    if not predictions:
        return {}
    first = predictions[0].prediction
    return {
        "model": first.model,
        "mode": first.mode,
        "samples": first.samples,
        "images": len(predictions),
    }

"""What is seen of every request: one log record, and its share of the metrics.

Nothing that a client sent is recorded as it came: methods and routes are those that are served,
parameters are those of an answer.
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

from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.problems import InternalError
from service.http.problem_responses import CLIENT_LEFT
from service.telemetry.events import RequestOutcome, Timing
from service.telemetry.metrics import OTHER, Metrics

logger = logging.getLogger(__name__)

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
PROBES = frozenset(("/livez", "/readyz", "/metrics"))


@dataclass(frozen=True)
class Answer:
    """One prediction of a request, and when it was ready (nanoseconds since 1970)."""

    body: Prediction
    timing: Timing
    at_ns: int


@dataclass
class Observation:
    """A request, as far as it has been seen; in its scope's state as `observation`."""

    scope: Scope
    started_s: float = field(default_factory=time.monotonic)
    status: int | None = None
    client_left: bool = False
    body_bytes: int = 0
    answers: list[Answer] = field(default_factory=list)
    outcome: RequestOutcome | None = None


_current: ContextVar[Observation | None] = ContextVar("observation", default=None)


class Observer:
    """Sees requests and predictions, and has them counted and logged."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def answered(self, body: Prediction, timing: Timing) -> None:
        """Sees a prediction; called where its request is handled, and counted at its end."""
        if observation := _current.get():
            observation.answers.append(Answer(body, timing, time.time_ns()))
        else:
            self._metrics.answered(body, timing)

    def ended(self, observation: Observation, route: str) -> None:
        """Sees the end of a request."""
        scope, status = observation.scope, observation.status
        if status is None:  # the server answers for us, unless nobody is there
            status = CLIENT_LEFT if observation.client_left else 500
        outcome = observation.outcome = RequestOutcome(
            method=scope["method"] if scope["method"] in METHODS else OTHER,
            route=route,
            status=status,
            problem=scope["state"].get("problem"),
            duration_s=time.monotonic() - observation.started_s,
            body_bytes=observation.body_bytes,
        )
        for answer in observation.answers:
            self._metrics.answered(answer.body, answer.timing)
        self._metrics.requested(outcome)
        _log(outcome, observation)


class RouteTemplates:
    """Tells the path template that a request is for.

    paths: templates, parameters in braces; they tell of requests that no route has been chosen
    for, such as those that a middleware refused.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._patterns = [(compile_path(path)[0], path) for path in paths]

    def of(self, scope: Scope) -> str:
        """The template, or `other` for what is not served."""
        routed = getattr(scope.get("route"), "path", None)
        if routed is not None:
            return routed or "/"  # a mount at the root has an empty path
        path = scope["path"]
        return next((template for regex, template in self._patterns if regex.match(path)), OTHER)


def served_paths(app: FastAPI) -> tuple[str, ...]:
    """The path templates of an application to which no more routes are added."""
    own = (app.openapi_url, app.docs_url, app.redoc_url)
    return (*app.openapi()["paths"], *(path for path in own if path))


class ObservationMiddleware:
    """Has an observer see every request, whoever answers it."""

    def __init__(self, app: ASGIApp, observer: Observer, paths: Iterable[str]) -> None:
        self.app = app
        self.observer = observer
        self.templates = RouteTemplates(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        observation = Observation(scope)
        scope.setdefault("state", {})["observation"] = observation
        token = _current.set(observation)

        async def observed_receive() -> Message:
            message = await receive()
            observation.body_bytes += len(message.get("body", b""))
            observation.client_left |= message["type"] == "http.disconnect"
            return message

        async def observed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                observation.status = message["status"]
            await send(message)

        try:
            await self.app(scope, observed_receive, observed_send)
            await asyncio.sleep(0)  # uvloop sends at the end of its turn: no client waits for a log
        except asyncio.CancelledError:
            observation.client_left = True
            raise
        except Exception:
            scope["state"]["problem"] = InternalError.code
            raise
        finally:
            _current.reset(token)
            self.observer.ended(observation, self.templates.of(scope))


def _log(outcome: RequestOutcome, observation: Observation) -> None:
    level = logging.DEBUG if outcome.route in PROBES else logging.INFO
    if not logger.isEnabledFor(level):
        return
    words = (outcome.method, outcome.route, outcome.status, outcome.problem)
    fields = {
        "client": observation.scope["state"].get("client"),
        "method": outcome.method,
        "route": outcome.route,
        "status": outcome.status,
        "problem": outcome.problem,
        "duration_s": round(outcome.duration_s, 6),
        "body_bytes": outcome.body_bytes,
        **_parameters(observation.answers),
    }
    logger.log(
        level,
        " ".join("%s" for word in words if word is not None),
        *(word for word in words if word is not None),
        extra={name: value for name, value in fields.items() if value is not None},
    )


def _parameters(answers: list[Answer]) -> dict[str, Any]:
    """How the images of one request were answered; all of them in the same way."""
    if not answers:
        return {}
    body = answers[0].body
    return {
        "model": body.model, "mode": body.mode, "samples": body.samples, "images": len(answers),
    }  # fmt: skip

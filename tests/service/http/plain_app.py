"""An application without a model, for tests of connections and bodies."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.types import ASGIApp, Scope

from service.http.middleware import RequestMiddleware
from service.http.responses import add_problem_handlers
from service.telemetry.metrics import Metrics
from service.telemetry.observation import ObservationMiddleware
from tests.service.observed import GAUGES

PROBES = ("/livez", "/readyz", "/metrics")


def plain_app(**options: Any) -> ASGIApp:
    """An app with the probes, `GET /models`, and `POST /predict` that reads its body."""
    app = FastAPI()
    add_problem_handlers(app)
    for path in (*PROBES, "/models"):
        app.add_api_route(path, lambda: "ok")

    @app.post("/predict")
    async def predict(request: Request) -> int:
        return len(await request.body())

    return guarded(app, **options)


def guarded(app: ASGIApp, *checks: Callable[[Scope], None], **options: Any) -> ASGIApp:
    """An application behind the middlewares that refuse requests."""
    guarded_app = RequestMiddleware(app, checks=checks, **options)
    return ObservationMiddleware(guarded_app, Metrics(lambda: GAUGES), ())

"""An application without a model, for tests of connections and bodies."""

from fastapi import FastAPI, Request
from starlette.types import ASGIApp

from service.http.middleware import BodyLimits, Check, HeaderChecks, RequestMiddleware
from service.http.responses import add_problem_handlers
from service.settings import BodySettings
from service.telemetry.metrics import Metrics
from service.telemetry.observation import ObservationMiddleware
from tests.service.observed import GAUGES

PROBES = ("/livez", "/readyz", "/metrics")


def plain_app() -> FastAPI:
    """An app with the probes, `GET /models`, and `POST /predict` that reads its body."""
    app = FastAPI()
    app.add_middleware(ObservationMiddleware, metrics=Metrics(lambda: GAUGES), paths=())
    add_problem_handlers(app)
    for path in (*PROBES, "/models"):
        app.add_api_route(path, lambda: "ok")

    @app.post("/predict")
    async def predict(request: Request) -> int:
        return len(await request.body())

    return app


def guarded(app: ASGIApp, *checks: Check, bodies: BodyLimits | None = None) -> ASGIApp:
    """An application behind the middlewares that refuse requests."""
    headers = HeaderChecks()
    limits = bodies or BodyLimits(BodySettings(), {})
    guarded_app = RequestMiddleware(app, headers, checks, limits)
    return ObservationMiddleware(guarded_app, Metrics(lambda: GAUGES), ())

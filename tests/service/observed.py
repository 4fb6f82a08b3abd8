"""A small observed application, for tests of logs, metrics and traces."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Scope

from eulerlora_contract.answers import Prediction
from eulerlora_contract.problems import Overloaded, Problem
from service.http.middleware import RequestMiddleware
from service.http.responses import add_problem_handlers
from service.routes.system import metrics_routes
from service.telemetry.metrics import Gauges, Metrics
from service.telemetry.observation import ObservationMiddleware
from service.telemetry.records import CompletedPrediction, RequestObservation

SECRET = "zz-secret-zz"
TEMPLATES = ("/predict", "/models/{name}")
BODY = Prediction(
    request_id="made-up", model="tiny", revision="sha256:1", mode="stoch", samples=4,
    trajectories=8, seed=1, label="a", probabilities={"a": 0.8, "b": 0.2}, entropy=0.45,
    expected_entropy=0.4, mutual_information=0.04, msp=0.8, ood=True, ood_threshold=0.9,
    unfamiliar=True, warnings=[],
)  # fmt: skip
AUTO_BODY = BODY.model_copy(update={"rows": 8})
SETTLED_BODY = BODY.model_copy(update={"samples": 1, "rows": 2})
COMPLETED = RequestObservation("POST", "/predict", 200, duration_s=0.3, body_bytes=5000)


GAUGES = Gauges(
    ready=True,
    last_reload_successful=True,
    queue_rows=0,
    queue_items=0,
    models={"tiny": {"revision": "sha256:1", "precision": "bfloat16", "runtime": "torch"}},
    shadow={"tiny": {"revision": "sha256:2", "precision": "bfloat16", "runtime": "torch"}},
    sandbox={"landlock": True, "seccomp": False},
)


def refuse_marked(scope: Scope) -> None:
    """Refuses requests with the header `X-Refuse` before routing."""
    if any(name == b"x-refuse" for name, _ in scope["headers"]):
        raise Problem("expected a key", code="not_authenticated", status=401)


def observed_app(metrics: Metrics, outside: Callable[[FastAPI], None] = lambda _: None) -> FastAPI:
    """An app with a route for every way in which a request can end.

    outside: adds middlewares outside ObservationMiddleware.
    """
    app = FastAPI()
    app.add_middleware(RequestMiddleware, checks=[refuse_marked])
    app.add_middleware(ObservationMiddleware, metrics=metrics, paths=TEMPLATES)
    outside(app)
    add_problem_handlers(app)
    app.include_router(metrics_routes(metrics))
    add_routes(app)
    return app


def add_routes(app: FastAPI) -> None:
    """Adds the routes."""

    @app.post("/predict")
    async def predict(request: Request) -> Prediction:
        await request.body()
        request.state.key_name = "clinic"
        request.state.observation.predictions.append(completed())
        return BODY

    @app.post("/predict/batch")
    async def predict_batch(request: Request) -> None:
        longer = replace(completed(), decode_s=0.0125, model_s=0.1)
        request.state.observation.predictions += [completed(), longer]

    @app.get("/livez")
    async def livez() -> None: ...

    @app.get("/models/{name}")
    async def model(name: str) -> None:
        await asyncio.sleep(0)

    @app.get("/overloaded")
    async def overloaded() -> None:
        raise Overloaded("busy", 1)

    @app.get("/defect")
    async def defect() -> None:
        raise RuntimeError(f"{SECRET}\nforged line")

    @app.get("/half")
    async def half() -> StreamingResponse:
        async def begin() -> AsyncIterator[bytes]:
            yield b"begun"
            raise RuntimeError(SECRET)

        return StreamingResponse(begin())

    @app.get("/gone")
    async def gone() -> None:
        raise ClientDisconnect


def completed(body: Prediction = BODY) -> CompletedPrediction:
    return CompletedPrediction(
        body.model, body, decode_s=0.002, queue_s=0.02, model_s=0.2, at_ns=10**9
    )


def count_everything(metrics: Metrics) -> None:
    """Updates every metric, so that its labels exist."""
    metrics.count_request(COMPLETED)
    metrics.count_shadow("tiny", "compared", {"label": "same"})
    metrics.count_batch("tiny", rows=12, items=3, seconds=0.2)
    for body in (BODY, AUTO_BODY, SETTLED_BODY):
        metrics.count_prediction(completed(body), "keyed")

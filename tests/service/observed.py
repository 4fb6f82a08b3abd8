"""A made-up application whose requests are observed, for the tests of what is seen of them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from eulerlora_client.contract.predictions import Prediction, StandardError
from eulerlora_client.contract.problems import NotAuthenticated, Overloaded
from service.http import problem_responses as problems
from service.routes.metrics_ import metrics_routes
from service.telemetry.events import Gauges, RequestOutcome
from service.telemetry.metrics import Metrics
from service.telemetry.observation import ObservationMiddleware, Observer
from service.telemetry.request_id import RequestIdMiddleware

SECRET = "zz-secret-zz"
TEMPLATES = ("/predict", "/models/{name}")
BODY = Prediction(
    request_id="made-up", model="tiny", revision="sha256:1", mode="stoch", samples=4,
    trajectories=8, seed=1, label="a", probabilities={"a": 0.8, "b": 0.2}, entropy=0.45,
    expected_entropy=0.4, mutual_information=0.04, msp=0.8, ood=True, ood_threshold=0.9,
    warnings=[],
)  # fmt: skip
AUTO_BODY = BODY.model_copy(update={"standard_error": StandardError(msp=0.02, entropy=0.05)})
OUTCOME = RequestOutcome("POST", "/predict", 200, None, 0.3, 5000)


@dataclass(frozen=True)
class MadeUpTiming:
    """Seconds of each stage."""

    decode_s: float = 0.002
    queue_s: float = 0.02
    model_s: float = 0.2


@dataclass(frozen=True)
class MadeUpBatch:
    """A batch of three images."""

    model: str = "tiny"
    rows: int = 12
    questions: int = 3
    seconds: float = 0.2


@dataclass
class State:
    """What the gauges tell."""

    ready: bool = True
    rows: int = 0
    questions: int = 0
    revisions: dict[str, str] = field(default_factory=lambda: {"tiny": "sha256:1"})

    def metrics(self) -> Metrics:
        return Metrics(
            Gauges(
                ready=lambda: self.ready,
                queue_rows=lambda: self.rows,
                queue_questions=lambda: self.questions,
                revisions=lambda: self.revisions,
            )
        )


class RefusesFirst:
    """A middleware that refuses before any route is chosen, where `X-Refuse` asks for it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = self.app
        if any(name == b"x-refuse" for name, _ in scope.get("headers", ())):
            app = problems.problem_response(NotAuthenticated("wanted a key"), "an-id")
        await app(scope, receive, send)


def observed_app(metrics: Metrics, outside: Callable[[FastAPI], None] = lambda _: None) -> FastAPI:
    """An app with a route for each way that a request can end.

    outside: adds middlewares between the one that observes and the one that gives ids.
    """
    app = FastAPI()
    observer = Observer(metrics)
    app.add_middleware(RefusesFirst)
    app.add_middleware(problems.DefectMiddleware)
    app.add_middleware(ObservationMiddleware, observer=observer, paths=TEMPLATES)
    outside(app)
    app.add_middleware(RequestIdMiddleware)
    problems.install(app)
    app.include_router(metrics_routes(metrics))
    add_endings(app, observer)
    return app


def add_endings(app: FastAPI, observer: Observer) -> None:
    """Adds the routes."""

    @app.post("/predict")
    async def predict(request: Request) -> Prediction:
        await request.body()
        request.state.client = "clinic"
        body = replace_model(BODY, request.query_params.get("model", "tiny"))
        observer.answered(body, MadeUpTiming())
        return body

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


def replace_model(body: Prediction, model: str) -> Prediction:
    """The body of another model's prediction."""
    return body.model_copy(update={"model": model})


def batch(**changes: Any) -> MadeUpBatch:
    """The made-up batch with some changes."""
    return replace(MadeUpBatch(), **changes)


def count_everything(metrics: Metrics) -> None:
    """Moves every metric, so that its labels show."""
    metrics.requested(OUTCOME)
    metrics.batch_ran(MadeUpBatch())
    metrics.answered(BODY, MadeUpTiming())
    metrics.answered(AUTO_BODY, MadeUpTiming())

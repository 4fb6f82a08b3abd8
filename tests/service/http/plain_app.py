"""An application without a model, for tests of connections and bodies."""

from fastapi import FastAPI, Request

from service.http import problem_responses as problems
from service.telemetry.logs import RequestIdMiddleware

PROBES = ("/livez", "/readyz", "/metrics")


def plain_app() -> FastAPI:
    """Returns an app with the probes, `GET /models`, and `POST /predict` that reads its body."""
    app = FastAPI()
    app.add_middleware(RequestIdMiddleware)
    problems.install(app)
    for path in (*PROBES, "/models"):
        app.add_api_route(path, lambda: "ok")

    @app.post("/predict")
    async def predict(request: Request) -> int:
        return len(await request.body())

    return app

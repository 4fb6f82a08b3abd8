"""GET /livez and GET /readyz over the life of an app."""

from fastapi import FastAPI
from starlette.testclient import TestClient

from service import problems
from service.probe_routes import Readiness, probe_routes
from service.request_id import RequestIdMiddleware


def test_a_started_service_is_alive_and_ready(client) -> None:
    alive, ready = client.get("/livez"), client.get("/readyz")
    assert (alive.status_code, alive.json()) == (200, {"status": "alive"})
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})


def test_a_service_is_alive_but_not_ready_before_its_start_and_after_its_end(
    model, make_app
) -> None:
    app = make_app(model)
    outside = TestClient(app)  # never enters the lifespan
    before = outside.get("/readyz")
    with TestClient(app) as client:
        assert client.get("/readyz").status_code == 200
    for response in (before, outside.get("/readyz")):
        assert response.status_code == 503
        assert response.headers["Content-Type"] == "application/problem+json"
        assert response.json()["code"] == "not_ready"
    assert outside.get("/livez").status_code == 200


def test_readiness_follows_its_flag() -> None:
    readiness = Readiness()
    app = FastAPI()
    app.add_middleware(RequestIdMiddleware)
    problems.install(app)
    app.include_router(probe_routes(readiness))
    client = TestClient(app)
    statuses = []
    for ready in (False, True, False):
        readiness.ready = ready
        statuses.append(client.get("/readyz").status_code)
    assert statuses == [503, 200, 503]

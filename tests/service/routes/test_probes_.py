"""GET /livez and GET /readyz over the life of a process."""

from fastapi import FastAPI
from starlette.testclient import TestClient

from service.http import problem_responses as problems
from service.lifecycle.phase import Lifecycle
from service.routes.probes_ import probe_routes
from service.telemetry.request_id import RequestIdMiddleware


def test_a_started_service_is_alive_and_ready(client) -> None:
    alive, ready = client.get("/livez"), client.get("/readyz")
    assert (alive.status_code, alive.json()) == (200, {"status": "alive"})
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})


def test_readiness_follows_the_life_of_the_process() -> None:
    lifecycle = Lifecycle()
    app = FastAPI()
    app.add_middleware(RequestIdMiddleware)
    problems.install(app)
    app.include_router(probe_routes(lifecycle))
    client = TestClient(app)
    responses = [client.get("/readyz")]
    for change in (lifecycle.become_ready, lifecycle.stop):
        change()
        responses.append(client.get("/readyz"))
    assert [response.status_code for response in responses] == [503, 200, 503]
    for response in responses[::2]:
        assert response.headers["Content-Type"] == "application/problem+json"
        assert response.json()["code"] == "not_ready"
    assert client.get("/livez").status_code == 200

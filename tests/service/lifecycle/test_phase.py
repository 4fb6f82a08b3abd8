"""The phases of the process, and which requests the application answers in each."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from eulerlora import EulerLoRA
from service.app import create_app
from service.inference.engine import ServedModel, ServedModels
from service.lifecycle.lifecycle import Lifecycle
from service.settings import ServiceSettings
from tests.service.harness import WorkingDecoder


@pytest.fixture
def lifecycle() -> Lifecycle:
    decoder: Any = WorkingDecoder()
    return Lifecycle(ServiceSettings(), decoder=decoder)


@pytest.fixture
def app(lifecycle: Lifecycle) -> FastAPI:
    return create_app(lifecycle, ServiceSettings())


@pytest.fixture
def serve(lifecycle: Lifecycle, model: EulerLoRA) -> Callable[[], None]:
    return lambda: lifecycle.serve(ServedModels([ServedModel(model)]))


def test_a_stopping_process_does_not_become_ready(lifecycle, serve) -> None:
    lifecycle.stop()
    serve()
    assert lifecycle.phase == "stopping"


def test_only_the_first_failure_is_stored(lifecycle, serve) -> None:
    serve()
    lifecycle.fail("first")
    lifecycle.fail("second")
    assert (lifecycle.phase, lifecycle.failure) == ("stopping", "first")


@pytest.mark.parametrize(
    ("is_served", "events", "statuses", "connection"),
    [
        (False, [], (200, 503, 503), "close"),
        (True, [], (200, 200, 200), None),
        (True, [Lifecycle.stop], (200, 503, 200), "close"),
        (False, [Lifecycle.stop], (200, 503, 503), "close"),
        (True, [lambda one: one.fail("secret")], (200, 503, 503), "close"),
    ],
    ids=["loading", "ready", "stopping", "stopped while loading", "failed"],
)
def test_the_phase_decides_which_requests_are_answered(
    app, lifecycle, serve, is_served, events, statuses, connection
) -> None:
    if is_served:
        serve()
    for event in events:
        event(lifecycle)
    client = TestClient(app)
    responses = [client.get(path) for path in ("/livez", "/readyz", "/models")]
    assert tuple(response.status_code for response in responses) == statuses
    assert {response.headers.get("Connection") for response in responses} == {connection}
    assert "secret" not in "".join(response.text for response in responses)


def test_the_metrics_have_readiness_and_refusals_in_every_phase(app, lifecycle, serve) -> None:
    client = TestClient(app)

    def scraped() -> list[str]:
        assert client.get("/models").status_code == (503 if lifecycle.fault else 200)
        wanted = ("eulerlora_ready", 'eulerlora_refusals_total{reason="not_ready"}')
        lines = client.get("/metrics").text.splitlines()
        return [line.split()[-1] for line in lines if line.startswith(wanted)]

    assert scraped() == ["0.0", "1.0"]
    serve()
    assert scraped() == ["1.0", "1.0"]
    lifecycle.fail("deliberate")
    assert scraped() == ["0.0", "2.0"]


def test_a_refusal_is_a_problem_with_retry_after_and_the_request_id(app) -> None:
    response = TestClient(app).post("/predict", headers={"X-Request-ID": "mine"}, content=b"x")
    assert response.headers["Content-Type"] == "application/problem+json"
    assert int(response.headers["Retry-After"]) >= 1
    body = response.json()
    assert (body["code"], body["request_id"]) == ("not_ready", "mine")
    assert response.headers["X-Request-ID"] == "mine"


def test_a_request_in_flight_when_the_service_stops_closes_its_connection(
    app, lifecycle, serve
) -> None:
    serve()
    app.add_api_route("/slow", lifecycle.stop)
    assert TestClient(app).get("/slow").headers["Connection"] == "close"

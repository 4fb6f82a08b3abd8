"""The phases of the process, and which requests the gate forwards in each."""

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from service.lifecycle.phase import Gate, Lifecycle


def test_a_stopping_process_does_not_become_ready() -> None:
    lifecycle = Lifecycle()
    lifecycle.stop()
    lifecycle.become_ready()
    assert lifecycle.phase == "stopping"


def test_only_the_first_failure_is_stored() -> None:
    lifecycle = Lifecycle()
    lifecycle.become_ready()
    lifecycle.fail("first")
    lifecycle.fail("second")
    assert (lifecycle.phase, lifecycle.failure) == ("stopping", "first")


PATHS = ("/livez", "/readyz", "/predict")


@pytest.fixture
def lifecycle() -> Lifecycle:
    return Lifecycle()


@pytest.fixture
def gate(lifecycle: Lifecycle) -> Gate:
    return Gate(lifecycle)


@pytest.fixture
def statuses(gate: Gate):
    """Returns the statuses of PATHS: () -> tuple."""
    client = TestClient(gate)
    return lambda: tuple(client.get(path).status_code for path in PATHS)


def ignore(_: str) -> None:
    """Counts nothing."""


def open_gate(gate: Gate) -> None:
    """Opens the gate to an application that answers all of PATHS."""

    async def respond(_: object) -> PlainTextResponse:
        return PlainTextResponse("forwarded")

    gate.open(Starlette(routes=[Route(path, respond) for path in (*PATHS, "/metrics")]), ignore)


def test_only_livez_succeeds_while_the_models_load(gate, statuses) -> None:
    assert statuses() == (200, 503, 503)
    open_gate(gate)  # before the health check
    assert statuses() == (200, 503, 503)


def test_the_metrics_of_a_service_that_is_loading_say_that_it_is_not_ready(gate) -> None:
    response = TestClient(gate).get("/metrics")
    assert response.status_code == 200
    ready = [line for line in response.text.splitlines() if line.startswith("eulerlora_ready")]
    assert ready == ["eulerlora_ready 0.0"]


def test_the_metrics_of_the_service_are_served_until_it_ends(gate, lifecycle) -> None:
    open_gate(gate)
    lifecycle.become_ready()
    lifecycle.fail("deliberate")
    assert TestClient(gate).get("/metrics").text == "forwarded"


def test_a_refusal_is_a_problem_with_retry_after_and_the_request_id(gate) -> None:
    response = TestClient(gate).post("/predict", headers={"X-Request-ID": "mine"}, content=b"x")
    assert response.headers["Content-Type"] == "application/problem+json"
    assert int(response.headers["Retry-After"]) >= 1
    body = response.json()
    assert (body["code"], body["request_id"]) == ("not_ready", "mine")
    assert response.headers["X-Request-ID"] == "mine"


def test_a_ready_service_receives_all_requests(gate, lifecycle, statuses) -> None:
    open_gate(gate)
    lifecycle.become_ready()
    assert statuses() == (200, 200, 200)
    assert "Connection" not in TestClient(gate).get("/predict").headers


def test_a_stopping_service_responds_and_closes_connections(gate, lifecycle, statuses) -> None:
    open_gate(gate)
    lifecycle.become_ready()
    lifecycle.stop()
    assert statuses() == (200, 200, 200)
    assert TestClient(gate).get("/predict").headers["Connection"] == "close"


def test_a_request_in_flight_when_the_service_stops_closes_its_connection(gate, lifecycle) -> None:
    async def respond(_: object) -> PlainTextResponse:
        lifecycle.stop()
        return PlainTextResponse("forwarded")

    gate.open(Starlette(routes=[Route("/predict", respond)]), ignore)
    lifecycle.become_ready()
    assert TestClient(gate).get("/predict").headers["Connection"] == "close"


def test_a_problem_outside_of_the_application_is_counted_once_the_gate_is_open(gate) -> None:
    counted: list[str] = []
    gate.count_problem("before")
    gate.open(Starlette(), counted.append)
    gate.count_problem("made up")
    assert counted == ["made up"]


def test_a_service_that_stops_while_loading_refuses_requests(lifecycle, statuses) -> None:
    lifecycle.stop()
    assert statuses() == (200, 503, 503)


def test_a_service_that_failed_a_health_check_refuses_requests(gate, lifecycle, statuses) -> None:
    open_gate(gate)
    lifecycle.become_ready()
    lifecycle.fail("made up")
    assert statuses() == (200, 503, 503)
    assert "made up" not in TestClient(gate).get("/predict").text

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


def ignore(_: str) -> None:
    """Counts nothing."""


def open_gate(gate: Gate) -> None:
    """Opens the gate to an application that answers all of PATHS."""

    async def respond(_: object) -> PlainTextResponse:
        return PlainTextResponse("forwarded")

    gate.open(Starlette(routes=[Route(path, respond) for path in (*PATHS, "/metrics")]), ignore)


@pytest.mark.parametrize(
    ("is_open", "events", "statuses", "connection"),
    [
        (False, [], (200, 503, 503), "close"),
        (True, [], (200, 503, 503), "close"),  # before the health check
        (True, [Lifecycle.become_ready], (200, 200, 200), None),
        (True, [Lifecycle.become_ready, Lifecycle.stop], (200, 200, 200), "close"),
        (False, [Lifecycle.stop], (200, 503, 503), "close"),
        (True, [Lifecycle.become_ready, lambda one: one.fail("secret")], (200, 503, 503), "close"),
    ],
    ids=["loading", "open", "ready", "stopping", "stopped while loading", "failed"],
)
def test_the_phase_decides_which_requests_are_forwarded(
    gate, lifecycle, is_open, events, statuses, connection
) -> None:
    if is_open:
        open_gate(gate)
    for event in events:
        event(lifecycle)
    client = TestClient(gate)
    responses = [client.get(path) for path in PATHS]
    assert tuple(response.status_code for response in responses) == statuses
    assert responses[-1].headers.get("Connection") == connection
    assert "secret" not in responses[-1].text


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


def test_a_request_in_flight_when_the_service_stops_closes_its_connection(gate, lifecycle) -> None:
    async def respond(_: object) -> PlainTextResponse:
        lifecycle.stop()
        return PlainTextResponse("forwarded")

    gate.open(Starlette(routes=[Route("/predict", respond)]), ignore)
    lifecycle.become_ready()
    assert TestClient(gate).get("/predict").headers["Connection"] == "close"

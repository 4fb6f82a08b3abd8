"""Which requests pass the gate in which phase of the process's life."""

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from service.lifecycle.gate import Gate
from service.lifecycle.phase import Lifecycle

PATHS = ("/livez", "/readyz", "/predict")


@pytest.fixture
def lifecycle() -> Lifecycle:
    return Lifecycle()


@pytest.fixture
def gate(lifecycle: Lifecycle) -> Gate:
    return Gate(lifecycle)


@pytest.fixture
def statuses(gate: Gate):
    """() -> the status of each of PATHS."""
    client = TestClient(gate)
    return lambda: tuple(client.get(path).status_code for path in PATHS)


def application() -> Starlette:
    async def answer(_: object) -> PlainTextResponse:
        return PlainTextResponse("passed")

    return Starlette(routes=[Route(path, answer) for path in PATHS])


def test_while_the_models_load_the_process_is_alive_and_nothing_else(gate, statuses) -> None:
    assert statuses() == (200, 503, 503)
    gate.application = application()  # it is there, but its models have not been checked
    assert statuses() == (200, 503, 503)


def test_a_refusal_is_a_problem_with_retry_after_and_the_request_s_id(gate) -> None:
    response = TestClient(gate).post("/predict", headers={"X-Request-ID": "mine"}, content=b"x")
    assert response.headers["Content-Type"] == "application/problem+json"
    assert int(response.headers["Retry-After"]) >= 1
    body = response.json()
    assert (body["code"], body["request_id"]) == ("not_ready", "mine")
    assert response.headers["X-Request-ID"] == "mine"


def test_a_ready_service_gets_all_requests(gate, lifecycle, statuses) -> None:
    gate.application = application()
    lifecycle.become_ready()
    assert statuses() == (200, 200, 200)
    assert "Connection" not in TestClient(gate).get("/predict").headers


def test_a_stopping_service_is_not_ready_but_answers_and_closes_connections(
    gate, lifecycle, statuses
) -> None:
    gate.application = application()
    lifecycle.become_ready()
    lifecycle.stop()
    assert statuses() == (200, 503, 200)
    assert TestClient(gate).get("/predict").headers["Connection"] == "close"


def test_a_request_that_was_under_way_when_the_service_began_to_stop_closes_its_connection(
    gate, lifecycle
) -> None:
    async def answer(_: object) -> PlainTextResponse:
        lifecycle.stop()
        return PlainTextResponse("passed")

    gate.application = Starlette(routes=[Route("/predict", answer)])
    lifecycle.become_ready()
    assert TestClient(gate).get("/predict").headers["Connection"] == "close"


def test_a_problem_that_did_not_come_this_way_is_counted_by_the_application(gate) -> None:
    counted: list[str] = []
    gate.refused("nobody counts it yet")
    gate.count = counted.append
    gate.refused("made up")
    assert counted == ["made up"]


def test_a_service_stopped_while_loading_answers_for_nothing(lifecycle, statuses) -> None:
    lifecycle.stop()
    assert statuses() == (200, 503, 503)


def test_a_service_that_failed_its_check_gives_no_more_predictions(
    gate, lifecycle, statuses
) -> None:
    gate.application = application()
    lifecycle.become_ready()
    lifecycle.fail("made up")
    assert statuses() == (200, 503, 503)
    assert "made up" not in TestClient(gate).get("/predict").text

"""Log records and metrics of observed requests."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from service.telemetry.metrics import Metrics
from service.telemetry.observation import ObservationMiddleware
from tests.service.observed import GAUGES, SECRET, TEMPLATES, observed_app
from tests.service.real_server import SOCKET_TIMEOUT_S, run_server


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(lambda: GAUGES)


@pytest.fixture
def app(metrics) -> FastAPI:
    return observed_app(metrics)


@pytest.fixture
def client(app) -> TestClient:
    return TestClient(app, raise_server_exceptions=False)


def requests(metrics: Metrics, method: str, route: str, status: int) -> float:
    labels = {"method": method, "route": route, "status": str(status)}
    return sum(
        metrics.registry.get_sample_value("eulerlora_requests_total", labels | {"client": client})
        or 0
        for client in ("anonymous", "keyed")
    )


def refusals(metrics: Metrics, reason: str) -> float | None:
    return metrics.registry.get_sample_value("eulerlora_refusals_total", {"reason": reason})


def test_a_request_has_one_record_with_its_fields(client, records) -> None:
    response = client.post("/predict?mode=unread", content=b"x" * 5000)
    (record,) = records()
    assert record["request_id"] == response.headers["X-Request-ID"]
    assert record["time"].endswith("+00:00")
    assert record.pop("duration_s") > 0
    del record["time"], record["request_id"]
    assert record == {
        "level": "INFO", "logger": "service.telemetry.observation", "message": "POST /predict 200",
        "client": "clinic", "method": "POST", "route": "/predict", "status": 200,
        "body_bytes": 5000, "model": "tiny", "mode": "stoch", "samples": 4, "views": 1,
        "images": 1,
    }  # fmt: skip


def test_server_timing_has_milliseconds_and_of_several_predictions_the_longest(client) -> None:
    header = client.post("/predict", content=b"x").headers["Server-Timing"]
    assert header == "decode;dur=2.00, queue;dur=20.00, model;dur=200.00"
    header = client.post("/predict/batch").headers["Server-Timing"]
    assert header == "decode;dur=12.50, queue;dur=20.00, model;dur=200.00"
    assert "Server-Timing" not in client.get("/livez").headers


@pytest.mark.parametrize(
    ("method", "path", "headers", "route", "status", "problem"),
    [
        ("GET", "/overloaded", {}, "/overloaded", 503, "overloaded"),
        ("POST", "/predict", {"X-Refuse": "1"}, "/predict", 401, "not_authenticated"),
        ("POST", "/models/zz-secret-zz", {"X-Refuse": "1"}, "/models/{name}", 401,
         "not_authenticated"),
        ("POST", "/zz", {"X-Refuse": "1"}, "other", 401, "not_authenticated"),
        ("DELETE", "/predict", {}, "/predict", 405, "method_not_allowed"),
        ("BREW", "/nowhere", {}, "other", 404, "not_found"),
        ("HEAD", "/models/tiny", {}, "/models/{name}", 200, None),
        ("GET", "/defect", {}, "/defect", 500, "internal_error"),
        ("GET", "/half", {}, "/half", 200, "internal_error"),  # aborted
        ("GET", "/gone", {}, "/gone", 499, None),  # the client disconnected
    ],
    ids=["problem", "refused before routing", "refused with a name", "refused without a route",
         "wrong method", "unknown method", "HEAD", "exception", "aborted", "disconnected"],
)  # fmt: skip
def test_a_request_is_recorded_and_counted_by_route_status_and_problem(
    client, records, metrics, method, path, headers, route, status, problem
) -> None:
    client.request(method, path, headers=headers)
    record = next(one for one in records() if "route" in one)
    assert (record["route"], record["status"], record.get("problem")) == (route, status, problem)
    assert SECRET not in str(record)
    known = "other" if method == "BREW" else method
    assert requests(metrics, known, route, status) == 1
    if problem is not None:
        assert refusals(metrics, problem) == 1


@pytest.mark.parametrize(
    ("sent", "logged"),
    [
        ("/wp-admin", "/wp-admin"),
        ("/a%0d%0aGET /b%1b[2J%e2%80%ae", r"/a\r\nGET /b\x1b[2J\u202e"),
        ("/" + "a" * 199, "/" + "a" * 199),
        ("/" + "a" * 200, "/" + "a" * 198 + "…"),
        ("/" + "%01" * 100, ("/" + r"\x01" * 100)[:199] + "…"),
    ],
)
def test_the_log_has_an_unknown_path_escaped_and_bounded_and_the_metrics_have_other(
    client, records, metrics, sent, logged
) -> None:
    client.get(f"{sent}?zz-query")
    (record,) = records()
    assert (record["path"], record["route"]) == (logged, "other")
    assert record["message"] == f"GET {logged} 404 not_found"
    assert "zz-query" not in str(record)
    assert requests(metrics, "GET", "other", 404) == 1


def test_an_exception_without_a_response_is_counted(metrics) -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError(SECRET)

    app = ObservationMiddleware(fails, metrics, TEMPLATES)
    with pytest.raises(RuntimeError):
        TestClient(app).get("/models/tiny")
    assert requests(metrics, "GET", "/models/{name}", 500) == 1
    assert refusals(metrics, "internal_error") == 1


def test_a_cancelled_request_is_a_499(metrics) -> None:
    app = observed_app(metrics)
    begun = asyncio.Event()

    @app.get("/waits")
    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def cancel_a_request() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            request = asyncio.create_task(client.get("/waits"))
            await begun.wait()
            request.cancel()
            await asyncio.wait([request])

    asyncio.run(cancel_a_request())
    assert requests(metrics, "GET", "/waits", 499) == 1


def test_probes_are_logged_at_debug_level(client, records) -> None:
    client.get("/livez")
    client.get("/metrics")
    client.get("/models/tiny")
    assert [record["level"] for record in records()] == ["DEBUG", "DEBUG", "INFO"]


@pytest.fixture
def address(app) -> Iterator[str]:
    """The URL of a real server of the app."""
    with run_server(app) as port:
        yield f"http://127.0.0.1:{port}"


def test_a_connection_survives_an_exception_that_is_logged_once(address, records) -> None:
    with httpx.Client(base_url=address, timeout=SOCKET_TIMEOUT_S) as client:
        for request_id in ("first", "second"):
            response = client.get("/defect", headers={"X-Request-ID": request_id})
            assert (response.status_code, response.json()["request_id"]) == (500, request_id)
    failed = [record for record in records() if "traceback" in record]
    assert [(record["logger"], record["request_id"]) for record in failed] == [
        ("service.http.responses", "first"), ("service.http.responses", "second"),
    ]  # fmt: skip

"""Requests are refused from their headers while the queue is full."""

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from service.decoding.slots import DecodingQuota
from service.http.middleware import AdmissionCheck
from service.inference.queue import RequestQueue, ThroughputEstimate
from service.settings import ServiceSettings
from tests.service.fake_engine import FakeEngine
from tests.service.http.plain_app import guarded

CLIENT = "address:testclient"


@pytest.fixture
def queue() -> RequestQueue:
    return RequestQueue(ServiceSettings(max_waiting_rows=12), 1, ThroughputEstimate())


@pytest.fixture
def quota() -> DecodingQuota:
    return DecodingQuota(60)


@pytest.fixture
def bodies_read() -> list[str]:
    """The paths of the requests that reached the application."""
    return []


@pytest.fixture
def client(queue: RequestQueue, quota: DecodingQuota, bodies_read: list[str]) -> TestClient:
    async def respond(request: Request) -> PlainTextResponse:
        bodies_read.append(request.url.path)
        return PlainTextResponse(f"{len(await request.body())} bytes")

    routes = [Route(path, respond, methods=["POST"]) for path in ("/predict", "/other")]
    admission = AdmissionCheck(queue, quota, ("/predict",))
    return TestClient(guarded(Starlette(routes=routes), admission))


def test_a_request_passes_while_there_is_capacity_for_a_row(client, queue) -> None:
    engine: Any = FakeEngine()
    with queue.reserve(CLIENT, engine, 4):
        assert client.post("/predict", content=b"image").text == "5 bytes"


def test_a_client_that_uses_its_share_is_refused_before_its_body_is_read(
    client, queue, bodies_read
) -> None:
    engine: Any = FakeEngine()
    with queue.reserve(CLIENT, engine, 6):
        response = client.post("/predict", content=b"image", headers={"X-Request-ID": "mine"})
        assert (response.status_code, response.json()["code"]) == (503, "overloaded")
        assert response.headers["Content-Type"] == "application/problem+json"
        assert int(response.headers["Retry-After"]) >= 1
        assert response.json()["request_id"] == "mine"
        assert bodies_read == []
        assert client.post("/other", content=b"image").text == "5 bytes"
    assert client.post("/predict", content=b"image").text == "5 bytes"


def test_a_closed_queue_is_not_ready(client, queue) -> None:
    queue.close()
    response = client.post("/predict", content=b"image")
    assert (response.status_code, response.json()["code"]) == (503, "not_ready")


def test_the_share_of_another_client_refuses_nothing(client, queue) -> None:
    engine: Any = FakeEngine()
    with queue.reserve("another", engine, 400):
        assert client.post("/predict", content=b"image").text == "5 bytes"


def test_a_client_over_its_decoding_quota_is_refused_before_its_body_is_read(
    client, quota, bodies_read
) -> None:
    quota.charge("another", 1000)
    assert client.post("/predict", content=b"image").status_code == 200
    quota.charge(CLIENT, 90)
    response = client.post("/predict", content=b"image")
    assert (response.status_code, response.json()["code"]) == (429, "quota_exceeded")
    assert 25 <= int(response.headers["Retry-After"]) <= 30
    assert bodies_read == ["/predict"]

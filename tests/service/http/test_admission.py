"""Requests that find no room are refused from their head."""

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from service.http.admission import AdmissionMiddleware
from service.inference.queue import WaitingRoom
from service.inference.throughput import Pace
from service.settings import ServiceSettings
from service.telemetry.request_id import RequestIdMiddleware
from tests.service.stage import Numbers


@pytest.fixture
def room() -> WaitingRoom:
    return WaitingRoom(ServiceSettings(max_waiting_rows=10), 1, Pace())


@pytest.fixture
def bodies_read() -> list[str]:
    """The paths of the requests that reached the application."""
    return []


@pytest.fixture
def client(room: WaitingRoom, bodies_read: list[str]) -> TestClient:
    async def answer(request: Request) -> PlainTextResponse:
        bodies_read.append(request.url.path)
        return PlainTextResponse(f"{len(await request.body())} bytes")

    routes = [Route(path, answer, methods=["POST"]) for path in ("/predict", "/other")]
    layers = [
        Middleware(RequestIdMiddleware),
        Middleware(AdmissionMiddleware, room=room, paths=("/predict",)),
    ]
    return TestClient(Starlette(routes=routes, middleware=layers))


def test_a_request_that_may_find_room_passes_with_its_body(client, room) -> None:
    engine: Any = Numbers()
    room.enter(engine, 9)
    assert client.post("/predict", content=b"image").text == "5 bytes"


def test_a_full_queue_refuses_a_request_before_its_body_is_read(client, room, bodies_read) -> None:
    engine: Any = Numbers()
    (place,) = room.enter(engine, 10)
    refusal = client.post("/predict", content=b"image", headers={"X-Request-ID": "mine"})
    assert (refusal.status_code, refusal.json()["code"]) == (503, "overloaded")
    assert refusal.headers["Content-Type"] == "application/problem+json"
    assert int(refusal.headers["Retry-After"]) >= 1
    assert refusal.json()["request_id"] == "mine"
    assert bodies_read == []
    assert client.post("/other", content=b"image").text == "5 bytes"
    room.leave(place)
    assert client.post("/predict", content=b"image").text == "5 bytes"


def test_a_room_that_lets_nobody_in_any_more_is_not_ready(client, room) -> None:
    room.close()
    refusal = client.post("/predict", content=b"image")
    assert (refusal.status_code, refusal.json()["code"]) == (503, "not_ready")

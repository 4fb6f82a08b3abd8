"""Request ids: accepted, created, and returned."""

import asyncio
import re

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

from service.telemetry.logs import RequestIdMiddleware, current_request_id, request_id_of

NEW = re.compile(r"[0-9a-f]{32}")


async def return_id(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request_id_of(request), headers={"X-Request-ID": "overwritten"})


async def return_context(request: Request) -> JSONResponse:
    return JSONResponse([current_request_id.get(), await asyncio.to_thread(current_request_id.get)])


async def greet(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("hello")
    await socket.close()


@pytest.fixture(scope="module")
def echo() -> TestClient:
    """A client of an app that returns the id."""
    app = Starlette(
        routes=[
            Route("/", return_id),
            Route("/context", return_context),
            WebSocketRoute("/ws", greet),
        ]
    )
    app.add_middleware(RequestIdMiddleware)
    return TestClient(app)


@pytest.mark.parametrize("sent", ["a", "abc-DEF_1.2", "9" * 128])
def test_a_well_formed_id_is_returned(echo, sent) -> None:
    response = echo.get("/", headers={"X-Request-ID": sent})
    assert response.headers.get_list("X-Request-ID") == [sent]
    assert response.text == sent


@pytest.mark.parametrize(
    "sent",
    ["", "a" * 129, "two words", "tab\there", "<script>", "a/b", "a\u00e9".encode(), b"\xff", "a,b",
     "{}", "'"],
)  # fmt: skip
def test_a_malformed_id_is_replaced(echo, sent) -> None:
    response = echo.get("/", headers={"X-Request-ID": sent})
    assert NEW.fullmatch(response.headers["X-Request-ID"])
    assert response.text == response.headers["X-Request-ID"]


def test_requests_without_an_id_get_different_ones(echo) -> None:
    ids = {echo.get("/").headers["X-Request-ID"] for _ in range(20)}
    assert len(ids) == 20
    assert all(NEW.fullmatch(request_id) for request_id in ids)


def test_responses_of_the_service_have_the_id_in_header_and_body(client, png) -> None:
    sent = {"X-Request-ID": "my.request-id_7", "Content-Type": "image/png"}
    good = client.post("/predict", content=png, headers=sent)
    bad = client.post("/predict?seed=x", content=png, headers=sent)
    assert (good.status_code, bad.status_code) == (200, 422)
    for response in (good, bad, client.get("/nowhere", headers=sent)):
        assert response.headers["X-Request-ID"] == "my.request-id_7"
        assert response.json()["request_id"] == "my.request-id_7"
    assert client.get("/livez", headers=sent).headers["X-Request-ID"] == "my.request-id_7"


def test_the_id_is_in_the_context_of_threads_too(echo) -> None:
    sent = {"X-Request-ID": "my.request-id_7"}
    assert echo.get("/context", headers=sent).json() == ["my.request-id_7", "my.request-id_7"]
    assert current_request_id.get() is None


def test_websockets_are_not_affected(echo) -> None:
    with echo.websocket_connect("/ws") as socket:
        assert socket.receive_text() == "hello"

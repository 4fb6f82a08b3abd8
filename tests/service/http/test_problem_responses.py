"""Problem documents for all errors: stable codes, request ids, no values and no tracebacks."""

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI, Query
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from eulerlora_client.contract.problems import SENT_BY_SERVICE, NotAuthenticated, Overloaded
from service.http import responses as problems
from service.http.responses import problem_headers
from service.telemetry.request_id import RequestIdMiddleware
from tests.service.http.plain_app import guarded

SECRET = "zz-secret-zz"
PROBLEMS = [kind for kind in SENT_BY_SERVICE if kind.status is not None]


@pytest.fixture(scope="module")
def faulty() -> TestClient:
    """A client of an app whose routes fail in different ways."""
    app = FastAPI()
    app.add_middleware(RequestIdMiddleware)
    problems.install(app)

    @app.get("/problem/{code}")
    async def problem(code: str) -> None:
        raise next(kind for kind in PROBLEMS if kind.code == code)("what is expected")

    @app.get("/defect")
    async def defect() -> None:
        raise RuntimeError(SECRET)

    @app.get("/http/{status}")
    async def http(status: int) -> None:
        raise HTTPException(status, SECRET, headers={"Retry-After": "7"})

    @app.get("/number")
    async def number(count: int = Query(ge=1)) -> None: ...

    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize("kind", PROBLEMS, ids=lambda kind: kind.__name__)
def test_a_problem_becomes_a_document(faulty, kind) -> None:
    response = faulty.get(f"/problem/{kind.code}")
    assert response.status_code == kind.status
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.json() == {
        "type": f"urn:eulerlora:problem:{kind.code}",
        "title": kind.title,
        "status": kind.status,
        "detail": "what is expected",
        "code": kind.code,
        "request_id": response.headers["X-Request-ID"],
    }


def test_a_problem_response_stores_its_code_in_the_request_state() -> None:
    scope: dict[str, Any] = {"type": "http", "path": "/predict"}
    sent = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])

    asyncio.run(problems.problem_response(Overloaded("busy"), "an-id")(scope, send, send))
    assert scope["state"] == {"problem": "overloaded"}
    assert sent == ["http.response.start", "http.response.body"]


def test_the_middleware_responds_to_an_exception_and_does_not_raise_it() -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError(SECRET)

    response = TestClient(guarded(fails)).get("/", headers={"X-Request-ID": "find-me"})
    assert response.headers.get_list("X-Request-ID") == ["find-me"]
    assert (response.status_code, response.json()["code"]) == (500, "internal_error")


def test_only_problems_with_an_unread_body_close_the_connection(faulty) -> None:
    closing = {
        kind.code
        for kind in PROBLEMS
        if faulty.get(f"/problem/{kind.code}").headers.get("Connection") == "close"
    }
    assert closing == {
        "malformed_request", "not_authenticated", "upload_too_slow", "body_too_large",
        "quota_exceeded", "headers_too_large",
    }  # fmt: skip


def test_overload_closes_the_connection_only_on_request() -> None:
    assert "Connection" not in problem_headers(Overloaded("busy"))
    assert problem_headers(Overloaded("busy"), closes=True)["Connection"] == "close"


def test_a_missing_key_is_answered_with_the_scheme() -> None:
    assert problem_headers(NotAuthenticated("no key"))["WWW-Authenticate"] == "Bearer"


def test_retry_after_is_at_least_one_whole_second() -> None:
    for seconds, header in ((0, "1"), (0.2, "1"), (1.2, "2"), (60, "60")):
        assert problem_headers(Overloaded("busy", seconds))["Retry-After"] == header
    assert "Retry-After" not in problem_headers(Overloaded("busy"))


def test_an_exception_is_a_500_without_details_and_is_logged(faulty, caplog) -> None:
    response = faulty.get("/defect", headers={"X-Request-ID": "find-me"})
    body = response.json()
    assert response.headers["Content-Type"] == "application/problem+json"
    assert (response.status_code, body["status"]) == (500, 500)
    assert (body["code"], body["request_id"]) == ("internal_error", "find-me")
    for hidden in (SECRET, "RuntimeError", "Traceback", ".py"):
        assert hidden not in response.text
    record = next(entry for entry in caplog.records if "find-me" in entry.getMessage())
    assert record.exc_info is not None
    assert SECRET in str(record.exc_info[1])


def test_the_response_to_an_exception_has_the_request_id(faulty) -> None:
    response = faulty.get("/defect", headers={"X-Request-ID": "find-me"})
    assert response.headers.get("X-Request-ID") == "find-me"


def test_the_next_request_after_an_exception_succeeds(faulty) -> None:
    assert faulty.get("/defect").status_code == 500
    assert faulty.get("/number?count=1").status_code == 200


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, "not_found"), (405, "method_not_allowed"), (400, "refused"), (429, "refused")],
)
def test_an_http_exception_keeps_its_status_and_headers_but_not_its_detail(
    faulty, status, code
) -> None:
    response = faulty.get(f"/http/{status}")
    assert response.headers["Content-Type"] == "application/problem+json"
    assert (response.status_code, response.json()["status"]) == (status, status)
    assert response.json()["code"] == code
    assert response.headers["Retry-After"] == "7"
    assert SECRET not in response.text


def test_an_invalid_parameter_is_named_without_its_value(faulty) -> None:
    for query in ("count=31337x", "count=-31337", ""):
        response = faulty.get(f"/number?{query}")
        assert response.status_code == 422
        assert response.json()["code"] == "invalid_parameter"
        assert response.json()["detail"].startswith("count: ")
        assert "31337" not in response.json()["detail"]


def test_an_unknown_path_is_a_404(client, refused) -> None:
    response = client.get("/no/such/xyzzy")
    refused(response, 404, "not_found")
    assert "xyzzy" not in response.text


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/predict", "POST"), ("PUT", "/predict", "POST"), ("DELETE", "/predict", "POST"),
     ("POST", "/models", "GET"), ("POST", "/models/tiny", "GET"), ("POST", "/livez", "GET")],
)  # fmt: skip
def test_a_wrong_method_is_a_405_with_the_allowed_one(
    client, refused, method, path, allowed
) -> None:
    response = client.request(method, path)
    refused(response, 405, "method_not_allowed")
    assert allowed in response.headers["Allow"]

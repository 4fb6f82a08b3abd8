"""Every error as a problem document: stable codes, the request's id, no values and no traces."""

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI, Query
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from eulerlora_client.contract.problems import SENT_BY_SERVICE, NotAuthenticated, Overloaded
from service.http import problem_responses as problems
from service.http.problem_responses import problem_headers
from service.telemetry.request_id import RequestIdMiddleware

SECRET = "zz-secret-zz"


PROBLEMS = [kind for kind in SENT_BY_SERVICE if kind.status is not None]


@pytest.fixture(scope="module")
def faulty() -> TestClient:
    """A client of an app whose routes fail in every way."""
    app = FastAPI()
    app.add_middleware(RequestIdMiddleware)
    problems.install(app)

    @app.get("/problem/{code}")
    async def problem(code: str) -> None:
        raise next(kind for kind in PROBLEMS if kind.code == code)("what was wanted")

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
def test_a_problem_becomes_its_document(faulty, kind) -> None:
    response = faulty.get(f"/problem/{kind.code}")
    assert response.status_code == kind.status
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.json() == {
        "type": f"urn:eulerlora:problem:{kind.code}",
        "title": kind.title,
        "status": kind.status,
        "detail": "what was wanted",
        "code": kind.code,
        "request_id": response.headers["X-Request-ID"],
    }


def test_a_problem_leaves_its_code_in_the_requests_state() -> None:
    scope: dict[str, Any] = {"type": "http"}
    sent = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])

    asyncio.run(problems.problem_response(Overloaded("busy"), "an-id")(scope, send, send))
    assert scope["state"] == {"problem": "overloaded"}
    assert sent == ["http.response.start", "http.response.body"]


def test_a_defect_behind_the_middleware_is_answered_and_raised_no_further() -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError(SECRET)

    app = RequestIdMiddleware(problems.DefectMiddleware(fails))
    response = TestClient(app).get("/", headers={"X-Request-ID": "find-me"})
    assert response.headers.get_list("X-Request-ID") == ["find-me"]
    assert (response.status_code, response.json()["code"]) == (500, "internal_error")


def test_only_a_body_left_unread_ends_the_connection(faulty) -> None:
    closing = {
        kind.code
        for kind in PROBLEMS
        if faulty.get(f"/problem/{kind.code}").headers.get("Connection") == "close"
    }
    assert closing == {
        "malformed_request", "not_authenticated", "upload_too_slow", "body_too_large",
        "quota_exceeded", "headers_too_large",
    }  # fmt: skip


def test_only_too_much_of_connections_or_bodies_ends_the_connection() -> None:
    assert "Connection" not in problem_headers(Overloaded("busy"))
    assert problem_headers(Overloaded("busy"), closes=True)["Connection"] == "close"


def test_a_refusal_without_a_key_names_the_scheme() -> None:
    assert problem_headers(NotAuthenticated("no key"))["WWW-Authenticate"] == "Bearer"


def test_the_seconds_until_a_retry_are_whole_and_never_none() -> None:
    for seconds, header in ((0, "1"), (0.2, "1"), (1.2, "2"), (60, "60")):
        assert problem_headers(Overloaded("busy", seconds))["Retry-After"] == header
    assert "Retry-After" not in problem_headers(Overloaded("busy"))


def test_a_defect_is_a_500_that_shows_nothing_and_is_logged_under_its_id(faulty, caplog) -> None:
    response = faulty.get("/defect", headers={"X-Request-ID": "find-me"})
    body = response.json()
    assert response.headers["Content-Type"] == "application/problem+json"
    assert (response.status_code, body["status"]) == (500, 500)
    assert (body["code"], body["request_id"]) == ("internal_error", "find-me")
    for hidden in (SECRET, "RuntimeError", "Traceback", ".py"):
        assert hidden not in response.text
    record = next(each for each in caplog.records if "find-me" in each.getMessage())
    assert record.exc_info is not None
    assert SECRET in str(record.exc_info[1])


def test_a_defects_answer_carries_the_id_in_its_header_too(faulty) -> None:
    response = faulty.get("/defect", headers={"X-Request-ID": "find-me"})
    assert response.headers.get("X-Request-ID") == "find-me"


def test_the_next_request_after_a_defect_succeeds(faulty) -> None:
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


def test_an_invalid_parameter_is_named_and_its_value_is_not_repeated(faulty) -> None:
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
def test_a_wrong_method_is_a_405_that_names_the_right_one(
    client, refused, method, path, allowed
) -> None:
    response = client.request(method, path)
    refused(response, 405, "method_not_allowed")
    assert allowed in response.headers["Allow"]

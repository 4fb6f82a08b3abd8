"""Problem documents for all errors, and the numbers of successful responses."""

import json
import math

import numpy as np
import pytest
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from eulerlora_contract.problems import SENT_BY_SERVICE
from service.http.responses import add_problem_handlers, json_response, rounded
from tests.service.http.plain_app import guarded
from tests.service.observed import BODY

SECRET = "zz-secret-zz"
PROBLEMS = [kind for kind in SENT_BY_SERVICE if kind.status is not None]


@pytest.fixture(scope="module")
def faulty() -> TestClient:
    """A client of an app whose routes fail in different ways."""
    app = FastAPI()
    add_problem_handlers(app)

    @app.get("/problem/{code}")
    async def problem(code: str, after_s: float | None = None) -> None:
        raise next(kind for kind in PROBLEMS if kind.code == code)("what is expected", after_s)

    @app.get("/defect")
    async def defect() -> None:
        raise RuntimeError(SECRET)

    @app.get("/http/{status}")
    async def http(status: int) -> None:
        raise HTTPException(status, SECRET, headers={"Retry-After": "7"})

    return TestClient(guarded(app), raise_server_exceptions=False)


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


def test_retry_after_is_at_least_one_whole_second(faulty) -> None:
    for seconds, header in ((0, "1"), (0.2, "1"), (1.2, "2"), (60, "60"), (None, None)):
        response = faulty.get(
            "/problem/overloaded", params={} if seconds is None else {"after_s": seconds}
        )
        assert response.headers.get("Retry-After") == header


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


def test_numbers_have_six_significant_digits_and_integers_all_of_theirs() -> None:
    body = {
        "probabilities": {"a": 0.123456789, "b": 1.23456789e-9},
        "rows": ((1 / 3, 2 / 3),),
        "entropy": 1234567.89,
        "seed": 4294967295,
    }
    assert json.loads(json_response(body).body) == {
        "probabilities": {"a": 0.123457, "b": 1.23457e-9},
        "rows": [[0.333333, 0.666667]],
        "entropy": 1234570.0,
        "seed": 4294967295,
    }


@pytest.mark.parametrize("classes", [2, 7, 1000])
def test_rounded_probabilities_sum_to_one_and_keep_the_highest(classes: int) -> None:
    generator = np.random.default_rng(classes)
    for concentration in (0.01, 1.0, 100.0):
        exact = generator.dirichlet(np.full(classes, concentration)).tolist()
        shown = rounded(exact)
        assert abs(math.fsum(shown) - 1) <= 1e-5
        assert max(shown) == rounded(max(exact))


def test_fields_that_are_not_set_are_omitted_and_those_without_a_value_are_null() -> None:
    body = BODY.model_copy(update={"ood": None, "entropy": math.inf})
    answer = json.loads(json_response(body).body)
    assert (answer["ood"], answer["entropy"]) == (None, None)
    assert answer.keys() == BODY.model_fields_set < BODY.__class__.model_fields.keys()

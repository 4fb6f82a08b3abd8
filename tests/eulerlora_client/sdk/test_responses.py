"""A response becomes a body or a typed problem."""

import time
from email.utils import formatdate

import httpx
import pytest

from eulerlora_client.contract.problems import (
    BadRequest,
    InternalError,
    NotAuthenticated,
    Overloaded,
    Problem,
    QuotaExceeded,
    RequestRefused,
    ServiceFailed,
    Unavailable,
    UnexpectedAnswer,
    UnsupportedMedia,
)
from eulerlora_client.sdk.requests import (
    PredictOptions,
    predict_request,
    reported_problem,
    response_body,
)

PREDICT = predict_request(b"", PredictOptions())
BY_STATUS = [
    (400, BadRequest),
    (401, NotAuthenticated),
    (415, UnsupportedMedia),
    (418, RequestRefused),
    (429, QuotaExceeded),
    (500, InternalError),
    (502, ServiceFailed),
    (503, Unavailable),
    (599, ServiceFailed),
    (302, UnexpectedAnswer),
    (204, UnexpectedAnswer),
]


@pytest.mark.parametrize(("status", "kind"), BY_STATUS)
def test_an_unknown_code_gets_the_class_of_its_status(status: int, kind: type[Problem]) -> None:
    document = {"code": "later_code", "detail": "D", "title": "T", "request_id": "r1"}
    problem = reported_problem(httpx.Response(status, json=document))
    assert type(problem) is kind
    assert (problem.code, problem.status, str(problem)) == ("later_code", status, "T: D")


@pytest.mark.parametrize(("status", "kind"), BY_STATUS)
@pytest.mark.parametrize("body", [b"", b"<html>Bad Gateway</html>", b"null", b'{"code": 3}'])
def test_a_response_without_a_document_gets_the_class_of_its_status(
    status: int, kind: type[Problem], body: bytes
) -> None:
    problem = reported_problem(httpx.Response(status, content=body, headers={"X-Request-ID": "r1"}))
    assert type(problem) is kind
    assert (problem.code, problem.status, problem.request_id) == (kind.code, status, "r1")
    assert str(status) in problem.detail


def test_deeply_nested_json_is_not_a_document() -> None:
    assert type(reported_problem(httpx.Response(503, content=b"[" * 100_000))) is Unavailable


def test_a_known_code_has_its_class() -> None:
    assert type(reported_problem(httpx.Response(503, json={"code": "overloaded"}))) is Overloaded


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7), ("0", 0), ("Mon, 05 Jan 2026 00:00:00 GMT", 0), ("soon", None), ("-1", None)],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float | None) -> None:
    problem = reported_problem(httpx.Response(503, headers={"Retry-After": value}))
    assert problem.retry_after_s == seconds


def test_a_future_date_is_converted_to_seconds() -> None:
    date = formatdate(time.time() + 3600, usegmt=True)
    seconds = reported_problem(httpx.Response(503, headers={"Retry-After": date})).retry_after_s
    assert seconds is not None
    assert 3000 < seconds <= 3600


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"label": 3}', b"\xff", b"[" * 100_000])
def test_a_200_without_a_prediction_is_an_unexpected_answer(body: bytes) -> None:
    with pytest.raises(UnexpectedAnswer, match="expected a Prediction") as raised:
        response_body(httpx.Response(200, content=body, headers={"X-Request-ID": "r3"}), PREDICT)
    assert (raised.value.status, raised.value.request_id) == (200, "r3")

"""Whatever comes back is a result or a typed problem."""

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
from eulerlora_client.sdk.requests import PredictOptions, predict_request
from eulerlora_client.sdk.responses import reported_problem, response_body

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
def test_a_code_of_tomorrow_is_told_by_its_status(status: int, kind: type[Problem]) -> None:
    document = {"code": "code_of_tomorrow", "detail": "D", "title": "T", "request_id": "r1"}
    found = reported_problem(httpx.Response(status, json=document))
    assert type(found) is kind
    assert (found.code, found.status, str(found)) == ("code_of_tomorrow", status, "T: D")


@pytest.mark.parametrize(("status", "kind"), BY_STATUS)
@pytest.mark.parametrize("body", [b"", b"<html>Bad Gateway</html>", b"null", b'{"code": 3}'])
def test_what_is_no_document_is_told_by_its_status(
    status: int, kind: type[Problem], body: bytes
) -> None:
    found = reported_problem(httpx.Response(status, content=body, headers={"X-Request-ID": "r1"}))
    assert type(found) is kind
    assert (found.code, found.status, found.request_id) == (kind.code, status, "r1")
    assert str(status) in found.detail


def test_nesting_without_end_is_no_document() -> None:
    assert type(reported_problem(httpx.Response(503, content=b"[" * 100_000))) is Unavailable


def test_a_known_code_has_its_own_kind() -> None:
    assert type(reported_problem(httpx.Response(503, json={"code": "overloaded"}))) is Overloaded


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7), ("0", 0), ("Mon, 05 Jan 2026 00:00:00 GMT", 0), ("soon", None), ("-1", None)],
)
def test_retry_after_is_in_seconds_or_a_date(value: str, seconds: float | None) -> None:
    found = reported_problem(httpx.Response(503, headers={"Retry-After": value}))
    assert found.retry_after_s == seconds


def test_a_date_to_come_is_in_so_many_seconds() -> None:
    date = formatdate(time.time() + 3600, usegmt=True)
    found = reported_problem(httpx.Response(503, headers={"Retry-After": date})).retry_after_s
    assert found is not None
    assert 3000 < found <= 3600


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"label": 3}', b"\xff", b"[" * 100_000])
def test_a_success_that_is_no_result_is_told(body: bytes) -> None:
    with pytest.raises(UnexpectedAnswer, match="expected a Prediction") as found:
        response_body(httpx.Response(200, content=body, headers={"X-Request-ID": "r3"}), PREDICT)
    assert (found.value.status, found.value.request_id) == (200, "r3")

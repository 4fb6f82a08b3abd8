"""Checks of URLs and keys, responses as bodies or problems, and waits between attempts."""

import asyncio
import json

import pytest
from pydantic import ValidationError

from eulerlora_client import RetryPolicy, TriageClient
from eulerlora_client.retries import retrying
from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.problems import (
    BadRequest,
    ConnectionLost,
    InternalError,
    NotAuthenticated,
    Overloaded,
    Problem,
    QuotaExceeded,
    RequestRefused,
    ServiceFailed,
    TimedOut,
    Unavailable,
    UnexpectedAnswer,
    Unreachable,
    UnsupportedMedia,
)
from tests.eulerlora_client.conftest import ScriptedServer
from tests.eulerlora_client.runs import DETAILS


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://x",
        "http://",
        "http://x:y",
        "http://x:0",
        "http://x/?a",
        "http://[",
    ],
)
def test_an_invalid_url_is_an_error(url: str) -> None:
    with pytest.raises(SettingsError, match="url: "):
        TriageClient(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@localhost:8000",
        "http://user:sec/secret@x",
        "secret@x",
        "http://u:secret@[",
    ],
)
def test_a_url_with_a_password_is_an_error_that_does_not_repeat_it(url: str) -> None:
    with pytest.raises(SettingsError, match="without user and password") as raised:
        TriageClient(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "line\nbreak"])
def test_an_invalid_key_is_an_error_that_does_not_repeat_it(key: str) -> None:
    with pytest.raises(SettingsError, match="key: ") as raised:
        TriageClient("http://127.0.0.1", key)
    assert not key or key not in str(raised.value)


def problem_of(server: ScriptedServer, status: int, body: bytes, **headers: str) -> Problem:
    """The problem of a client whose request gets this response."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    server.reply((status, named, b"" if status in NO_BODY else body))
    with TriageClient(server.url, retry=NO_RETRY) as client, pytest.raises(Problem) as raised:
        client.predict(b"pixels")
    return raised.value


NO_RETRY = RetryPolicy(service_s=0, quota_s=0)
NO_BODY = {204}
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
def test_an_unknown_code_gets_the_class_of_its_status(
    server: ScriptedServer, status: int, kind: type[Problem]
) -> None:
    document = {"code": "later_code", "detail": "D", "title": "T", "request_id": "r1"}
    problem = problem_of(server, status, json.dumps(document).encode())
    assert type(problem) is kind
    if status not in NO_BODY:
        assert (problem.code, problem.status, str(problem)) == ("later_code", status, "T: D")


@pytest.mark.parametrize(("status", "kind"), BY_STATUS)
@pytest.mark.parametrize("body", [b"", b"<html></html>", b"null", b'{"code": 3}', b"[" * 100_000])
def test_a_response_without_a_document_gets_the_class_of_its_status(
    server: ScriptedServer, status: int, kind: type[Problem], body: bytes
) -> None:
    problem = problem_of(server, status, body, X_Request_ID="r1")
    assert type(problem) is kind
    assert (problem.code, problem.status, problem.request_id) == (kind.code, status, "r1")
    assert str(status) in problem.detail


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7), ("0", 0), ("Mon, 05 Jan 2026 00:00:00 GMT", 0), ("soon", None), ("-1", None)],
)
def test_retry_after_is_seconds_or_a_date(
    server: ScriptedServer, value: str, seconds: float | None
) -> None:
    assert problem_of(server, 503, b"", Retry_After=value).retry_after_s == seconds


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"label": 3}', b"\xff", b"[" * 100_000])
def test_a_200_without_a_prediction_is_an_unexpected_answer(
    server: ScriptedServer, body: bytes
) -> None:
    problem = problem_of(server, 200, body, X_Request_ID="r3")
    assert type(problem) is UnexpectedAnswer
    assert "expected a Prediction" in str(problem)
    assert (problem.status, problem.request_id) == (200, "r3")


def waits_s(*problems: Problem, retry: RetryPolicy) -> list[float]:
    """The waits between attempts that raise these problems, until one succeeds."""
    remaining, waits = list(problems), list[float]()

    async def attempt() -> None:
        if remaining:
            raise remaining.pop(0)

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    asyncio.run(retrying(retry).copy(sleep=wait)(attempt))
    return waits


HOUR = RetryPolicy(service_s=3600, quota_s=3600)


def test_the_wait_is_retry_after_with_a_short_jitter() -> None:
    waits = waits_s(
        QuotaExceeded("", retry_after_s=20), Overloaded("", retry_after_s=2), retry=HOUR
    )
    assert 20 <= waits[0] <= 20.5
    assert 2 <= waits[1] <= 2.5


def test_without_retry_after_waits_grow_up_to_a_limit() -> None:
    waits = waits_s(*[Unreachable("")] * 40, retry=HOUR)
    for attempt, wait in enumerate(waits):
        assert 0 <= wait <= min(5, 0.25 * 2**attempt)
    assert max(waits) > 0.5


def test_a_quota_has_a_limit_of_its_own() -> None:
    policy = RetryPolicy(service_s=1, quota_s=100)
    assert len(waits_s(QuotaExceeded("", retry_after_s=50), retry=policy)) == 1
    with pytest.raises(Overloaded):
        waits_s(Overloaded("", retry_after_s=50), retry=policy)


def test_a_lost_connection_is_retried_and_a_timeout_is_not() -> None:
    assert len(waits_s(ConnectionLost(""), retry=HOUR)) == 1
    with pytest.raises(TimedOut):
        waits_s(TimedOut(""), retry=HOUR)


def test_keys_of_later_services_are_ignored_also_in_models_that_checkpoints_share(
    server: ScriptedServer,
) -> None:
    label = {"name": "mel", "description": "melanoma", "later": 1}
    details = DETAILS | {"classes": [label], "later": 2}
    server.reply((200, {}, json.dumps(details).encode()))
    with TriageClient(server.url) as client:
        answer = client.model(details["name"])
    assert answer.classes[0].description == "melanoma"
    with pytest.raises(ValidationError):
        ClassName.model_validate(label)

"""Checks of URLs and keys, responses as bodies or problems, and waits between attempts."""

import asyncio
import json
import threading
from typing import Any

import pytest
from pydantic import ValidationError

from eulerlora_client import RetryPolicy, TriageClient
from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.errors import SettingsError
from tests.eulerlora_client.conftest import ScriptedServer, prediction_reply
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


def problem_of(server: ScriptedServer, status: int, body: bytes, **headers: str) -> Any:
    """The problem of a client whose request gets this response."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    server.reply((status, named, b"" if status in NO_BODY else body))
    (problem,) = many_results(server, 1, NO_RETRY)
    return problem


def many_results(server: ScriptedServer, count: int, retry: RetryPolicy) -> list[Any]:
    """The results or problems of as many requests, one after the other."""
    with TriageClient(server.url, retry=retry) as client:
        return list(client.predict_many([b"pixels"] * count, concurrency=1))


NO_RETRY = RetryPolicy(service_s=0, quota_s=0)
NO_BODY = {204}
BY_STATUS = [
    (400, "bad_request"),
    (401, "not_authenticated"),
    (415, "unsupported_media"),
    (418, "refused"),
    (429, "quota_exceeded"),
    (500, "internal_error"),
    (502, "service_failed"),
    (503, "unavailable"),
    (599, "service_failed"),
    (302, "unexpected_answer"),
    (204, "unexpected_answer"),
]


@pytest.mark.parametrize(("status", "code"), BY_STATUS)
def test_an_unknown_code_gets_the_class_of_its_status(
    server: ScriptedServer, status: int, code: str
) -> None:
    document = {"code": "later_code", "detail": "D", "title": "T", "request_id": "r1"}
    problem = problem_of(server, status, json.dumps(document).encode())
    assert type(problem).code == code
    if status not in NO_BODY:
        assert (problem.code, problem.status, str(problem)) == ("later_code", status, "T: D")


@pytest.mark.parametrize(("status", "code"), BY_STATUS)
@pytest.mark.parametrize("body", [b"", b"<html></html>", b"null", b'{"code": 3}', b"[" * 100_000])
def test_a_response_without_a_document_gets_the_class_of_its_status(
    server: ScriptedServer, status: int, code: str, body: bytes
) -> None:
    problem = problem_of(server, status, body, X_Request_ID="r1")
    assert (problem.code, type(problem).code) == (code, code)
    assert (problem.status, problem.request_id) == (status, "r1")
    assert str(status) in problem.detail


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7), ("0", 0), ("Mon, 05 Jan 2026 00:00:00 GMT", 0), ("soon", None), ("-1", None)],
)
def test_retry_after_is_seconds_or_a_date(
    server: ScriptedServer, value: str, seconds: float | None
) -> None:
    assert problem_of(server, 503, b"", Retry_After=value).retry_after_s == seconds


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"label": 3}', b'{"secret', b"\xff", b"[" * 100_000]
)
def test_a_200_without_a_prediction_is_an_unexpected_answer(
    server: ScriptedServer, body: bytes
) -> None:
    problem = problem_of(server, 200, body, X_Request_ID="r3")
    assert problem.code == "unexpected_answer"
    assert "expected a Prediction" in str(problem)
    assert (problem.status, problem.request_id, "secret" in str(problem)) == (200, "r3", False)


@pytest.fixture
def waits_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a client waits between attempts, in place of its waits."""
    waits: list[float] = []
    others = asyncio.sleep  # of the servers of other tests

    async def sleep(seconds: float) -> None:
        if threading.current_thread().name == "TriageClient":
            waits.append(seconds)
        else:
            await others(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return waits


HOUR = RetryPolicy(service_s=3600, quota_s=3600)


def test_the_wait_is_retry_after_with_a_short_jitter(
    server: ScriptedServer, waits_s: list[float]
) -> None:
    replies = ((status, {"Retry-After": after}, b"") for status, after in ((429, "20"), (503, "2")))
    server.reply(*replies, prediction_reply())
    many_results(server, 1, HOUR)
    assert 20 <= waits_s[0] <= 20.5
    assert 2 <= waits_s[1] <= 2.5


def test_without_retry_after_waits_grow_up_to_a_limit(
    server: ScriptedServer, waits_s: list[float]
) -> None:
    server.reply(*[None] * 40, prediction_reply())
    many_results(server, 1, HOUR)
    assert len(waits_s) == 40
    for attempt, wait in enumerate(waits_s):
        assert 0 <= wait <= min(5, 0.25 * 2**attempt)
    assert max(waits_s) > 0.5


def test_a_quota_has_a_limit_of_its_own(server: ScriptedServer, waits_s: list[float]) -> None:
    policy = RetryPolicy(service_s=1, quota_s=100)
    later = {"Retry-After": "50"}
    server.reply((429, later, b""), prediction_reply(), (503, later, b""), prediction_reply())
    prediction, problem = many_results(server, 2, policy)
    assert (prediction.label, problem.status, len(waits_s)) == ("nv", 503, 1)


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

"""Authentication and rate limits, decided before the body is read."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from eulerlora_contract.problems import Problem, QuotaExceeded
from service.auth.access import KeyCheck
from service.auth.keys import Keys
from tests.service.http import plain_app
from tests.service.key_files import client as client_with
from tests.service.key_files import write_keys

Get = Callable[..., Any]
BEARER = {"Authorization": "Bearer clinic-key"}
LIMITED = {"X-API-Key": "limited-key"}
CLINIC = client_with("clinic", "clinic-key")


def limited(requests_per_minute: int) -> dict[str, object]:
    return client_with("limited", "limited-key", requests_per_minute=requests_per_minute)


async def echo_client(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that returns the name of the key in the request state."""
    request = Request(scope)
    answer = JSONResponse({"client": getattr(request.state, "key_name", None)})
    await answer(scope, receive, send)


@pytest.fixture
def clock() -> SimpleNamespace:
    """The clock of the quotas; a test sets `now` (seconds)."""
    return SimpleNamespace(now=1_000_000.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_keys(tmp_path / "keys.jsonl", CLINIC, limited(2))


@pytest.fixture
def application(file: Path, clock: SimpleNamespace) -> ASGIApp:
    check = KeyCheck(Keys(file, check_interval_s=0), lambda: clock.now)
    return plain_app.guarded(echo_client, check, refuse_full, check.count)


def refuse_full(scope: Scope) -> None:
    """A check between those of the key."""
    if scope["path"] == "/full":
        raise QuotaExceeded("full", retry_after_s=0)


@pytest.fixture
def get(application: ASGIApp) -> Get:
    """(path, headers) -> the response."""
    client = TestClient(application)
    return lambda path="/predict", headers=None: client.get(path, headers=headers)


@pytest.mark.parametrize(
    "headers",
    [BEARER, {"authorization": "bEARER  clinic-key "}, {"X-API-Key": "clinic-key"}],
)
def test_a_known_key_passes_and_sets_the_client(get: Get, headers) -> None:
    response = get(headers=headers)
    assert (response.status_code, response.json()) == (200, {"client": "clinic"})


@pytest.mark.parametrize("path", ["/predict", "/livez"])
@pytest.mark.parametrize("headers", [BEARER, {"X-API-Key": "clinic-key"}, {"X-API-Key": "wrong"}])
def test_a_key_is_removed_from_the_request_once_it_is_checked(
    file: Path, path: str, headers
) -> None:
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"path": path, "headers": [*pairs, (b"accept", b"*/*")], "state": {}}
    with suppress(Problem):
        KeyCheck(Keys(file))(scope)
    assert scope["headers"] == [(b"accept", b"*/*")]


def test_another_authorization_scheme_beside_the_key_is_ignored(get: Get) -> None:
    headers = {"Authorization": "Basic Y2xpbmlj", "X-API-Key": "clinic-key"}
    assert get(headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "clinic-key"},
        {"Authorization": "Basic clinic-key"},
        {"X-API-Key": ""},
        {"X-API-Key": "clinic-key2"},
        {"X-API-Key": "schlüssel".encode()},
        {"Authorization": b"Bearer \xff\xfe\x80"},
        {"X-API-Key": "k" * 10_000},
        BEARER | {"X-API-Key": "clinic-key"},
    ],
)
def test_anything_else_is_401_without_echo(get: Get, headers) -> None:
    response = get(headers=headers)
    body = response.json()
    assert (response.status_code, body["code"]) == (401, "not_authenticated")
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert response.headers["Connection"] == "close"
    assert response.headers["X-Request-ID"] == body["request_id"]
    assert "clinic" not in response.text
    assert get(headers=BEARER).status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/livez", 200),
        ("/readyz", 200),
        ("/metrics", 200),
        ("/docs", 200),
        ("/openapi.json", 200),
        ("/page/triage.js", 200),
        ("/page", 401),
        ("/models", 401),
        ("/models/ham10000", 401),
        ("/predict", 401),
        ("/predict/batch", 401),
        ("/livez/", 401),
        ("//livez", 401),
        ("/LIVEZ", 401),
        ("/nowhere", 401),
    ],
)
def test_only_open_paths_are_served_without_a_key(get: Get, path: str, status: int) -> None:
    assert get(f"http://testserver{path}").status_code == status


def test_a_request_over_the_limit_is_429_with_the_exact_retry_after(get: Get, clock) -> None:
    assert get("/full", LIMITED).status_code == 429
    assert get(headers=LIMITED).status_code == 200
    clock.now += 6
    assert get(headers=LIMITED).status_code == 200  # 0.2 of a request is left
    clock.now += 4.5
    for _ in range(3):  # refused requests do not count
        assert get("/full", LIMITED).json()["detail"] == "full"
        response = get(headers=LIMITED)
        assert (response.status_code, response.json()["code"]) == (429, "quota_exceeded")
        assert response.headers["Retry-After"] == "20"  # 19.5 s
    clock.now += 19.6
    assert [get(headers=LIMITED).status_code for _ in range(2)] == [200, 429]


def test_a_lowered_limit_applies_at_once(get: Get, file: Path) -> None:
    write_keys(file, limited(4))
    assert get(headers=LIMITED).status_code == 200
    write_keys(file, limited(1))
    assert get(headers=LIMITED).status_code == 200
    refused = get(headers=LIMITED)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")


def test_the_quota_of_one_client_does_not_affect_another(get: Get, clock) -> None:
    assert [get(headers=LIMITED).status_code for _ in range(3)] == [200, 200, 429]
    assert all(get(headers=BEARER).status_code == 200 for _ in range(5))
    assert get("/livez").status_code == 200

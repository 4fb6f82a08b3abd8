"""Client faults, one of every kind, against the sockets of a running `eulerlora serve`."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.service.images import synthetic_images
from benchmarks.service.load import Part, form, post, post_form
from service.auth.keys import write_clients
from service.settings import NESTED, PREFIX
from service.telemetry import metrics
from tests.server_process import ServerProcess, serving
from tests.service.audit_entries import SECRET as AUDIT_SECRET
from tests.service.bad_requests import (
    FORM,
    HOST,
    PREDICT,
    Case,
    bad_cases,
    only,
    unusual_cases,
)
from tests.service.key_clients import client as client_with
from tests.service.real_server import PROBE, RawResponse, exchange

SECRET = "zz-secret-zz"
MAX_BYTES = 3_000_000
PHOTOGRAPH = synthetic_images(1)[0]
SENT = Part("file", PHOTOGRAPH, "a.jpg", "image/jpeg")
FAULTS = {
    "text": "unsupported_media",
    "a JSON body": "unsupported_media",
    "truncated PNG": "unusable_image",
    "an empty body": "invalid_upload",
    "no file in the form": "invalid_upload",
    "a wrong boundary": "malformed_body",
    "a declared length of 1 GB": "body_too_large",
    "a wrong method": "method_not_allowed",
    "no Host": "malformed_request",
    "two lengths": "malformed_request",
    "a header of 200 kB": "headers_too_large",
    "parameters {'sample': 4}": "invalid_parameter",
    "an unknown model": "unknown_model",
}
"""One case of every problem code; tests of lower levels have the others."""
SECRET_IN = {
    "a parameter": Case("", post(PHOTOGRAPH, parameters={"mode": SECRET}), only(422)),
    "a model": Case("", post(PHOTOGRAPH, parameters={"model": SECRET}), only(404)),
    "a media type": Case("", post(PHOTOGRAPH, f"text/{SECRET}"), only(415)),
    "a text file": Case("", post(SECRET.encode()), only(415)),
    "a part's name": Case("", post_form([Part(SECRET, PHOTOGRAPH, "a")]), only(422)),
    "a file's name": Case("", post_form([Part("file", b"text", SECRET)]), only(415)),
    "a preamble": Case("", post(SECRET.encode() + form([SENT]), FORM), only(400)),
    "a boundary": Case("", post(b"x", f"multipart/form-data; boundary={SECRET}"), only(400)),
    "a query": Case(
        "", f"GET /unknown?{SECRET} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), only(404)
    ),
    "a method": Case(
        "", f"{SECRET} /predict HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), only(405)
    ),
    "a header": Case(
        "", f"GET / HTTP/1.1\r\nHost: localhost\r\n{SECRET}\r\n\r\n".encode(), only(400)
    ),
    "a host": Case("", f"GET / HTTP/1.1\r\nHost: {SECRET}\r\n\r\n".encode(), only(421)),
    "an origin": Case("", PREDICT + HOST + f"Origin: http://{SECRET}\r\n\r\n".encode(), only(403)),
    "a version": Case("", f"GET / HTTP/{SECRET}\r\nHost: localhost\r\n\r\n".encode(), only(400)),
}


def limit_bodies() -> None:
    """Sets the maximum size of bodies in the server and disables its cache of /metrics."""
    os.environ[f"{PREFIX}BODIES{NESTED}MAX_BYTES"] = str(MAX_BYTES)
    metrics.CACHE_S = 0


@pytest.fixture(scope="module")
def server(checkpoint_folder: Path) -> Iterator[ServerProcess]:
    with serving(checkpoint_folder, change=limit_bodies) as server:
        server.wait_for("/readyz", 200)
        yield server


@pytest.fixture(autouse=True)
def still_serves(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks after every test that the next valid request succeeds."""
    yield
    if "server" in request.fixturenames:
        port = request.getfixturevalue("server").port
        assert exchange(port, post(PHOTOGRAPH)).status == 200


def named(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@named([case for case in bad_cases(PHOTOGRAPH) if case.name in FAULTS])
def test_a_fault_has_its_status_and_code_in_a_problem_document(server, case) -> None:
    response = exchange(server.port, case.request)
    assert response.status in case.statuses
    assert response.problem["code"] == FAULTS[case.name]
    assert "Traceback" not in server.log


@named([case for case in unusual_cases(PHOTOGRAPH) if case.name == "CMYK"])
def test_a_converted_image_has_a_result_with_a_warning(server, case) -> None:
    response = exchange(server.port, case.request)
    assert response.status == 200
    assert any("CMYK" in warning["message"] for warning in json.loads(response.body)["warnings"])


@pytest.mark.parametrize("kind", SECRET_IN)
def test_no_input_is_in_the_response_or_the_log(server, kind) -> None:
    response = exchange(server.port, SECRET_IN[kind].request)
    assert response.status in SECRET_IN[kind].statuses
    assert response.problem["code"]
    assert SECRET not in response.body.decode()
    assert SECRET not in str(response.headers)
    assert SECRET not in server.log


@pytest.fixture(scope="module")
def guarded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guarded")


@pytest.fixture(scope="module")
def guarded(checkpoint_folder: Path, guarded_folder: Path) -> Iterator[ServerProcess]:
    """A server with API keys and an audit log."""
    folder = guarded_folder
    limited = client_with("limited", "limited-key").model_copy(update={"requests_per_minute": 1})
    write_clients(folder / "keys", [client_with("clinic", "old-key", "new-key"), limited])
    (folder / "secret").write_bytes(AUDIT_SECRET)
    options = (
        f"--keys={folder / 'keys'}",
        f"--audit={folder / 'audit'}",
        f"--audit-secret={folder / 'secret'}",
    )
    with serving(checkpoint_folder, *options) as server:
        server.wait_for("/readyz", 200)
        yield server


def predict_with_key(server: ServerProcess, key: bytes, body: bytes = PHOTOGRAPH) -> RawResponse:
    header = b"X-API-Key: " + key + b"\r\n"
    return exchange(server.port, post(body, length=len(PHOTOGRAPH)).replace(HOST, HOST + header))


def test_unknown_keys_and_used_up_quotas_are_refused_before_the_body_is_sent(guarded) -> None:
    response = predict_with_key(guarded, b"wrong", body=b"")
    assert (response.status, response.problem["code"]) == (401, "not_authenticated")
    assert predict_with_key(guarded, b"limited-key").status == 200
    response = predict_with_key(guarded, b"limited-key", body=b"")
    assert (response.status, response.problem["code"]) == (429, "quota_exceeded")
    assert 1 <= int(response.headers["retry-after"]) <= 60
    assert predict_with_key(guarded, b"new-key").status == 200


def test_no_decision_is_returned_while_the_audit_log_is_not_writable(
    guarded, guarded_folder
) -> None:
    log = guarded_folder / "audit"
    moved = log.with_name("moved")
    log.rename(moved)
    log.mkdir()  # a folder cannot be written as a log
    response = predict_with_key(guarded, b"new-key")
    assert (response.status, response.problem["code"]) == (503, "audit_unavailable")
    assert str(log) not in response.body.decode()
    assert exchange(guarded.port, PROBE).problem["code"] == "not_ready"
    log.rmdir()
    moved.rename(log)
    guarded.wait_for("/readyz", 200)  # without another decision
    assert predict_with_key(guarded, b"new-key").status == 200

"""Client faults, one of every kind, against the sockets of a running `eulerlora serve`."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest
from PIL import Image

from clinic.tests.audit_entries import SECRET as AUDIT_SECRET
from tests.server_process import ServerProcess, serving
from tests.service.conftest import encoded
from tests.service.key_files import client as client_with
from tests.service.key_files import write_keys
from tests.service.raw_requests import BOUNDARY, form, get, post, post_form
from tests.service.real_server import PROBE, RawResponse, connect, exchange

SECRET = "zz-secret-zz"
MAX_BYTES = 3_000_000
PHOTOGRAPH = encoded(Image.linear_gradient("L").resize((600, 450)).convert("RGB"), "JPEG")
SENT = [("file", ("a.jpg", PHOTOGRAPH, "image/jpeg"))]
FORM = f"multipart/form-data; boundary={BOUNDARY}"
PREDICT = b"POST /predict HTTP/1.1\r\n"
HOST = b"Host: 127.0.0.1\r\n"
PNG = encoded(Image.new("RGB", (128, 96)), "PNG")
BYTE = PREDICT + b"Content-Type: image/jpeg\r\nContent-Length: 1\r\n"
FAULTS = {
    "text": (post(b"hello"), 415, "unsupported_media"),
    "a JSON body": (post(b"{}", "application/json"), 415, "unsupported_media"),
    "truncated PNG": (post(PNG[: len(PNG) // 2]), 422, "unusable_image"),
    "an empty body": (post(b""), 422, "invalid_upload"),
    "no file in the form": (
        post_form([("other", ("a", b"1", "image/jpeg"))]), 422, "invalid_upload",
    ),
    "a wrong boundary": (
        post(form(SENT).replace(BOUNDARY.encode(), b"another"), FORM), 400, "malformed_body",
    ),
    "a declared length of 1 GB": (post(PHOTOGRAPH, length=10**9), 413, "body_too_large"),
    "a wrong method": (get("/predict"), 405, "method_not_allowed"),
    "no Host": (BYTE + b"\r\n1", 400, "malformed_request"),
    "two lengths": (BYTE + HOST + b"Content-Length: 2\r\n\r\n12", 400, "malformed_request"),
    "a header of 200 kB": (
        BYTE + HOST + b"X: " + b"a" * 200_000 + b"\r\n\r\n1", 431, "headers_too_large",
    ),
    "an unknown parameter": (post(PHOTOGRAPH, parameters={"sample": 4}), 422, "invalid_parameter"),
    "an unknown model": (post(PHOTOGRAPH, parameters={"model": "other"}), 404, "unknown_model"),
}  # fmt: skip
"""Request, status and code: one of every problem code; tests of lower levels have the others."""


def head(method: str, target: str, *lines: str, version: str = "1.1") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/{version}", *lines, "", ""]).encode()


LOCAL = "Host: localhost"
SECRET_IN = {
    "a parameter": (post(PHOTOGRAPH, parameters={"mode": SECRET}), 422),
    "a model": (post(PHOTOGRAPH, parameters={"model": SECRET}), 404),
    "a media type": (post(PHOTOGRAPH, f"text/{SECRET}"), 415),
    "a text file": (post(SECRET.encode()), 415),
    "a part's name": (post_form([(SECRET, ("a", PHOTOGRAPH, "image/jpeg"))]), 422),
    "a file's name": (post_form([("file", (SECRET, b"text", "text/plain"))]), 415),
    "a preamble": (post(SECRET.encode() + form(SENT), FORM), 400),
    "a boundary": (post(b"x", f"multipart/form-data; boundary={SECRET}"), 400),
    "a query": (head("GET", f"/unknown?{SECRET}", LOCAL), 404),
    "a method": (head(SECRET, "/predict", LOCAL), 405),
    "a header": (head("GET", "/", LOCAL, SECRET), 400),
    "a host": (head("GET", "/", f"Host: {SECRET}"), 421),
    "an origin": (head("POST", "/predict", "Host: 127.0.0.1", f"Origin: http://{SECRET}"), 403),
    "a version": (head("GET", "/", LOCAL, version=SECRET), 400),
}
"""Request and status."""


def limit_bodies() -> None:
    """Sets the maximum size of bodies in the server and disables its cache of /metrics."""
    os.environ["EULERLORA_SERVE_BODIES__MAX_BYTES"] = str(MAX_BYTES)
    patch("service.telemetry.metrics._CACHE_S", 0).start()


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


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_its_status_and_code_in_a_problem_document(server, fault) -> None:
    request, status, code = FAULTS[fault]
    response = exchange(server.port, request)
    assert (response.status, response.problem["code"]) == (status, code)
    assert "Traceback" not in server.log


@pytest.mark.parametrize("kind", SECRET_IN)
def test_no_input_is_in_the_response_or_the_log(server, kind) -> None:
    request, status = SECRET_IN[kind]
    response = exchange(server.port, request)
    assert response.status == status
    assert response.problem["code"]
    assert SECRET not in response.body.decode()
    assert SECRET not in str(response.headers)
    assert SECRET not in server.log


def test_half_open_connections_of_one_address_lock_no_other_address_out(server) -> None:
    with ExitStack() as stack:
        for _ in range(520):
            half_open = stack.enter_context(connect(server.port, "127.0.0.3"))
            half_open.sendall(b"POST /predict HTTP/1.1\r\nHost: ")
        for address in ("127.0.0.1", "127.0.0.2"):
            assert exchange(server.port, post(PHOTOGRAPH), address).status == 200


@pytest.fixture(scope="module")
def guarded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guarded")


@pytest.fixture(scope="module")
def guarded(checkpoint_folder: Path, guarded_folder: Path) -> Iterator[ServerProcess]:
    """A server with API keys and an audit log."""
    folder = guarded_folder
    limited = client_with("limited", "limited-key", requests_per_minute=1)
    write_keys(folder / "keys", client_with("clinic", "old-key", "new-key"), limited)
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

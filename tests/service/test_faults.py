"""Faults of clients, one of every kind, on the sockets of `eulerlora serve` as it is started."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.service.inputs.bad_requests import (
    FORM,
    HOST,
    PREDICT,
    Case,
    bad_cases,
    odd_cases,
    only,
)
from benchmarks.service.inputs.images import made_up_photographs
from benchmarks.service.load.request import Part, form, post, post_form
from service.auth.key_file import write_clients
from service.settings import NESTED, PREFIX
from tests.server_process import END_S, ServerProcess, serving, wait_until
from tests.service.audit_decisions import SECRET as AUDIT_SECRET
from tests.service.key_clients import client as client_with
from tests.service.real_server import RawResponse, connect, exchange, is_closed, read_response

SECRET = "zz-secret-zz"
MAX_BYTES = 3_000_000
PHOTOGRAPH = made_up_photographs(1)[0]
SENT = Part("file", PHOTOGRAPH, "a.jpg", "image/jpeg")
CHUNKED = PREDICT + HOST + b"Content-Type: image/jpeg\r\nTransfer-Encoding: chunked\r\n\r\n"
CODES = {
    404: {"unknown_model"},
    405: {"method_not_allowed"},
    413: {"body_too_large"},
    415: {"unsupported_media"},
    431: {"headers_too_large"},
}
UPLOADS = {
    "an empty body", "no file in the form", "a file without a name", "two files", "an empty file",
}  # fmt: skip
NO_HTTP = {"no Host", "two lengths"}
TELLING = {
    "a parameter": Case("", post(PHOTOGRAPH, parameters={"mode": SECRET}), only(422)),
    "a model": Case("", post(PHOTOGRAPH, parameters={"model": SECRET}), only(404)),
    "a media type": Case("", post(PHOTOGRAPH, f"text/{SECRET}"), only(415)),
    "a text file": Case("", post(SECRET.encode()), only(415)),
    "a part's name": Case("", post_form([Part(SECRET, PHOTOGRAPH, "a")]), only(422)),
    "a file's name": Case("", post_form([Part("file", b"text", SECRET)]), only(415)),
    "a preamble": Case("", post(SECRET.encode() + form([SENT]), FORM), only(400)),
    "a boundary": Case("", post(b"x", f"multipart/form-data; boundary={SECRET}"), only(400)),
    "a path": Case("", f"GET /{SECRET} HTTP/1.1\r\nHost: a\r\n\r\n".encode(), only(404)),
    "a method": Case("", f"{SECRET} /predict HTTP/1.1\r\nHost: a\r\n\r\n".encode(), only(405)),
    "a header": Case("", f"GET / HTTP/1.1\r\nHost: a\r\n{SECRET}\r\n\r\n".encode(), only(400)),
    "a version": Case("", f"GET / HTTP/{SECRET}\r\nHost: a\r\n\r\n".encode(), only(400)),
}


def read_little() -> None:
    """In the server's process: bodies of at most 3 MB."""
    os.environ[f"{PREFIX}BODIES{NESTED}MAX_BYTES"] = str(MAX_BYTES)


@pytest.fixture(scope="module")
def server(checkpoint_folder: Path) -> Iterator[ServerProcess]:
    with serving(checkpoint_folder, change=read_little) as server:
        server.wait_for("/readyz", 200)
        yield server


@pytest.fixture(autouse=True)
def still_serves(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every fault the next good request succeeds."""
    yield
    if "server" in request.fixturenames:
        port = request.getfixturevalue("server").port
        assert exchange(port, post(PHOTOGRAPH)).status == 200


def codes_of(case: Case, status: int) -> set[str]:
    """The problems' codes that tell of a case with a status."""
    if status == 400:
        return {"malformed_request" if case.name in NO_HTTP else "malformed_body"}
    if status == 422:
        if case.name.startswith("parameters"):
            return {"invalid_parameter"}
        return {"invalid_upload" if case.name in UPLOADS else "unusable_image"}
    return CODES[status]


def named(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@named([each for each in bad_cases(PHOTOGRAPH) if each.statuses])
def test_a_fault_gets_its_status_and_code_in_a_whole_problem_document(server, case) -> None:
    answer = exchange(server.port, case.request)
    assert answer.status in case.statuses
    assert answer.problem["code"] in codes_of(case, answer.status)
    assert "Traceback" not in server.log


@named(odd_cases(PHOTOGRAPH))
def test_what_is_only_odd_is_answered(server, case) -> None:
    answer = exchange(server.port, case.request)
    assert answer.status == 200
    plain = {"WebP", "turned by EXIF", "garbage as EXIF", "garbage as ICC profile"}
    about_pixels = [
        each for each in json.loads(answer.body)["warnings"] if "declared otherwise" not in each
    ]
    assert bool(about_pixels) == (case.name not in {*plain, "bytes after the end"})


@pytest.mark.parametrize("kind", TELLING)
def test_nothing_that_was_sent_is_in_the_answer_or_in_the_log(server, kind) -> None:
    answer = exchange(server.port, TELLING[kind].request)
    assert answer.status in TELLING[kind].statuses
    assert answer.problem["code"]
    assert SECRET not in answer.body.decode()
    assert SECRET not in str(answer.headers)
    assert SECRET not in server.log


@pytest.mark.parametrize("head", [
    post(b"", length=MAX_BYTES + 1),
    CHUNKED + b"%x\r\n" % (MAX_BYTES + 1) + bytes(MAX_BYTES + 1),
], ids=["declared", "chunked"])  # fmt: skip
def test_a_body_over_the_limit_is_refused_while_the_rest_is_still_to_come(server, head) -> None:
    with connect(server.port) as connection:
        connection.sendall(head)
        answer = read_response(connection)
        assert (answer.status, answer.problem["code"]) == (413, "body_too_large")
        assert is_closed(connection)


def test_the_id_that_a_client_sent_is_that_of_its_problem(server) -> None:
    text = post(b"text").replace(HOST, HOST + b"X-Request-ID: find-me\r\n")
    assert exchange(server.port, text).problem["request_id"] == "find-me"


def sample(server: ServerProcess, name: str, **labels: str) -> float:
    """A metric's value; 0 where there is none yet."""
    text = httpx.get(f"{server.url}/metrics", timeout=END_S).text
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            if (each.name, each.labels) == (name, labels):
                return float(each.value)
    return 0


def test_a_client_gone_during_its_upload_is_seen_and_nothing_is_run_for_it(server) -> None:
    gone = {"method": "POST", "route": "/predict", "status": "499"}
    answered = {"model": "tiny", "mode": "det"}
    before = sample(server, "eulerlora_requests_total", **gone)
    predictions = sample(server, "eulerlora_predictions_total", **answered)
    for _ in range(3):
        with connect(server.port) as connection:
            connection.sendall(post(PHOTOGRAPH)[:-1])
    wait_until(lambda: sample(server, "eulerlora_requests_total", **gone) == before + 3, END_S)
    assert sample(server, "eulerlora_predictions_total", **answered) == predictions


def test_what_was_refused_is_counted_by_its_code(server) -> None:
    def counted(code: str) -> float:
        return sample(server, "eulerlora_refusals_total", reason=code)

    asked = {
        "unsupported_media": post(b"text"),
        "invalid_parameter": post(PHOTOGRAPH, parameters={"sample": 4}),
        "malformed_request": PREDICT + b"\r\n",
        "headers_too_large": PREDICT + HOST + b"X: " + bytes(200_000).replace(b"\0", b"x"),
    }
    before = {code: counted(code) for code in asked}
    for request in asked.values():
        exchange(server.port, request)
    assert {code: counted(code) - before[code] for code in asked} == dict.fromkeys(asked, 1)


@pytest.fixture(scope="module")
def guarded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guarded")


@pytest.fixture(scope="module")
def guarded(checkpoint_folder: Path, guarded_folder: Path) -> Iterator[ServerProcess]:
    """A server that asks for keys and records its decisions."""
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


def asked_with(server: ServerProcess, key: bytes, body: bytes = PHOTOGRAPH) -> RawResponse:
    header = b"X-API-Key: " + key + b"\r\n"
    return exchange(server.port, post(body, length=len(PHOTOGRAPH)).replace(HOST, HOST + header))


def test_either_of_two_active_keys_is_answered(guarded) -> None:
    assert [asked_with(guarded, key).status for key in (b"old-key", b"new-key")] == [200, 200]


@pytest.mark.parametrize("key", [b"", b"wrong", b"schl\xc3\xbcssel", b"\xff\xfe\x80", b"x" * 9000])
def test_without_a_known_key_401_comes_before_the_body_is_sent(guarded, key) -> None:
    answer = asked_with(guarded, key, body=b"")
    assert (answer.status, answer.problem["code"]) == (401, "not_authenticated")
    assert asked_with(guarded, b"new-key").status == 200


def test_a_used_up_quota_is_429_with_retry_after_and_before_the_body_is_sent(guarded) -> None:
    assert asked_with(guarded, b"limited-key").status == 200
    answer = asked_with(guarded, b"limited-key", body=b"")
    assert (answer.status, answer.problem["code"]) == (429, "quota_exceeded")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert asked_with(guarded, b"new-key").status == 200


def test_while_the_audit_log_cannot_be_written_no_decision_is_given(
    guarded, guarded_folder
) -> None:
    log = guarded_folder / "audit"
    held = log.with_name("held")
    log.rename(held)
    log.mkdir()  # in its place: nothing can be written there
    answer = asked_with(guarded, b"new-key")
    assert (answer.status, answer.problem["code"]) == (503, "audit_unavailable")
    assert str(log) not in answer.body.decode()
    log.rmdir()
    held.rename(log)
    assert asked_with(guarded, b"new-key").status == 200

"""Both clients send the same requests and return the same results, retries and problems."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import aclosing, closing
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from eulerlora_client import AsyncTriageClient, RetryPolicy, Timeouts, TriageClient
from eulerlora_contract.errors import SettingsError
from tests.eulerlora_client.conftest import (
    PREDICTION,
    ReceivedRequest,
    Reply,
    ScriptedServer,
    prediction_reply,
    problem_reply,
)
from tests.eulerlora_client.runs import triage_document, triage_reply
from tests.problems import raises_problem

Call = Callable[..., Any]
MANY = ("predict_many", "triage_many")
CONCURRENCY = 2  # so that twice as many images are taken at most
NO_RETRY = RetryPolicy(service_s=0, quota_s=0)
PROBLEM_FIELDS = {"type": "urn:x", "request_id": "r9"}
RETRY_FOR_AN_HOUR = RetryPolicy(service_s=3600, quota_s=3600)


def call_blocking(url: str, method: str, *arguments: object, **options: Any) -> Any:
    predict_options = options.pop("options", {})
    with TriageClient(url, **options) as client:
        result = getattr(client, method)(*arguments, **predict_options)
        return list(result) if method in MANY else result


def call_async(url: str, method: str, *arguments: object, **options: Any) -> Any:
    predict_options = options.pop("options", {})

    async def call() -> Any:
        async with AsyncTriageClient(url, **options) as client:
            result = getattr(client, method)(*arguments, **predict_options)
            if method in MANY:
                return [item async for item in result]
            return await result

    return asyncio.run(call())


@pytest.fixture(params=[call_blocking, call_async], ids=["blocking", "asyncio"])
def call(request: pytest.FixtureRequest) -> Call:
    """(url, method, *arguments, options={}, **options of the client) -> the method's result."""
    return request.param


@pytest.fixture
def closed_url() -> Iterator[str]:
    """An address that refuses connections: its port is bound, but does not listen."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_a_path_bytes_and_a_file_make_the_same_request(
    call: Call, server: ScriptedServer, tmp_path: Path
) -> None:
    server.reply(prediction_reply())
    path = tmp_path / "Jane Doe.png"
    path.write_bytes(b"pixels")
    for image in (path, str(path), b"pixels", BytesIO(b"pixels")):
        assert call(server.url, "predict", image).label == "nv"
    for request in server.requests:
        assert (request.method, request.path) == ("POST", "/predict")
        assert b"pixels" in request.body
        assert b"Jane" not in request.body
        assert "Authorization" not in request.headers


def test_all_parameters_and_the_key_are_sent(call: Call, server: ScriptedServer) -> None:
    server.reply(prediction_reply())
    options = {
        "mode": "stoch",
        "samples": 2,
        "seed": 7,
        "model": "a b",
        "detail": True,
        "coverage": 0.9,
    }
    url = server.url + "/prefix/"
    prediction = call(url, "predict", b"pixels", key="elk_1", options=options)
    (request,) = server.requests
    query = "mode=stoch&samples=2&seed=7&model=a+b&coverage=0.9&detail=trajectories"
    assert request.path == f"/prefix/predict?{query}"
    assert request.headers["Authorization"] == "Bearer elk_1"
    assert prediction.trajectory_labels == ("mel", "nv")


def test_a_triage_request_has_no_defaults_of_its_own_and_all_given_parameters(
    call: Call, server: ScriptedServer
) -> None:
    server.reply(triage_reply("urgent"))
    options = {"mode": "stoch", "samples": 2, "views": 8, "model": "a b", "coverage": 0.9}
    assert call(server.url, "triage", b"pixels").disposition == "urgent"
    call(server.url, "triage", b"pixels", options=options)
    (many,) = call(server.url, "triage_many", [b"pixels"], 3, options=options)
    assert many.disposition == "urgent"
    query = "?mode=stoch&samples=2&views=8&model=a+b&coverage=0.9"
    assert [request.path for request in server.requests] == [
        "/triage", f"/triage{query}", f"/triage{query}"
    ]  # fmt: skip


def test_a_decision_is_one_request_in_json(call: Call, server: ScriptedServer) -> None:
    recorded = {
        "request_id": "r1", "disposition": "urgent", "decision": "routine", "reason": "R",
        "diagnosis": None,
    }  # fmt: skip
    server.reply((200, {}, json.dumps(recorded).encode()))
    sent = {"decision": "routine", "reason": "R", "index": 3}
    decided = call(server.url, "decide", "r1", options=sent)
    assert (decided.decision, decided.is_override) == ("routine", True)
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/decisions")
    assert json.loads(request.body) == {"request_id": "r1", **sent}
    with pytest.raises(TypeError, match="unknown option who"):
        call(server.url, "decide", "r1", options={"who": "me"})


def test_a_batch_is_one_request_with_all_images(call: Call, server: ScriptedServer) -> None:
    document = {"status": 422, "code": "unusable_image", "title": "T", "detail": "D"}
    entries = [triage_document("refer"), document | PROBLEM_FIELDS]
    server.reply((200, {}, json.dumps({"results": entries}).encode()))
    refer, broken = call(server.url, "triage_batch", [b"one", b"two"], options={"mode": "det"})
    assert refer.disposition == "refer"
    assert (broken.code, broken.status, broken.detail) == ("unusable_image", 422, "D")
    assert broken.request_id == "r9"
    (request,) = server.requests
    assert request.path == "/triage/batch?mode=det"
    assert (request.body.count(b'name="files"'), b"two" in request.body) == (2, True)


def test_a_lesion_is_as_urgent_as_its_most_urgent_image_and_a_failed_one_may_show_anything(
    call: Call, server: ScriptedServer
) -> None:
    document = {"status": 422, "code": "unusable_image", "title": "T", "detail": "D"}
    failed = document | PROBLEM_FIELDS
    routine, refer = map(triage_document, ("routine", "refer"))
    cases = (
        ([routine, routine], "routine"),
        ([routine, failed, refer], "refer"),
        ([routine, failed], None),
    )
    server.reply(*((200, {}, json.dumps({"results": entries}).encode()) for entries, _ in cases))
    for entries, disposition in cases:
        lesion = call(server.url, "triage_lesion", [b"image"] * len(entries))
        assert lesion.disposition == disposition
        assert len(lesion.images) == len(entries)
    assert lesion.deciding.code == "unusable_image"
    with pytest.raises(ValueError, match="one or more images"):
        call(server.url, "triage_lesion", [])


def test_metadata_is_removed_from_every_upload_if_asked(call: Call, server: ScriptedServer) -> None:
    buffer = BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG", comment="Jane Doe")
    result = triage_reply("urgent")
    server.reply(result, prediction_reply(), result)
    for method in ("triage", "predict"):
        call(server.url, method, buffer.getvalue(), strip_metadata=True)
    call(server.url, "triage", buffer.getvalue())
    assert [b"Jane" in request.body for request in server.requests] == [False, False, True]
    with raises_problem("metadata_not_removed"):
        call(server.url, "triage", b"DICM", strip_metadata=True)
    assert len(server.requests) == 3


def test_the_name_of_a_model_is_quoted_in_the_path(call: Call, server: ScriptedServer) -> None:
    server.reply(problem_reply(404, "unknown_model"))
    with raises_problem("unknown_model"):
        call(server.url, "model", "a/b?")
    assert server.requests[0].path == "/models/a%2Fb%3F"


def test_a_problem_has_all_fields_of_its_document(call: Call, server: ScriptedServer) -> None:
    server.reply(problem_reply(503, "not_ready", Retry_After="7"))
    with raises_problem("not_ready") as raised:
        call(server.url, "predict", b"pixels", retry=NO_RETRY)
    assert raised.value.__dict__ == {
        "code": "not_ready",
        "status": 503,
        "title": "T",
        "detail": "D",
        "request_id": "r9",
        "retry_after_s": 7,
        "file": None,
    }


@pytest.mark.parametrize(
    "failure",
    [
        (429, {"Retry-After": "0"}, b""),
        (503, {"Retry-After": "0"}, b""),
        (504, {"Retry-After": "Mon, 05 Jan 2026 00:00:00 GMT"}, b""),
        None,
    ],
    ids=["429", "503", "504", "closed"],
)
def test_a_temporary_failure_is_retried_with_the_same_request(
    call: Call, server: ScriptedServer, failure: Reply
) -> None:
    server.reply(failure, prediction_reply())
    assert call(server.url, "predict", b"pixels", retry=RETRY_FOR_AN_HOUR).label == "nv"
    first, second = server.requests
    assert b"pixels" in second.body
    assert (first.method, first.path) == (second.method, second.path)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, "not_authenticated"),
        (422, "unprocessable"),
        (500, "internal_error"),
        (502, "service_failed"),
    ],
)
def test_other_failures_are_not_retried(
    call: Call, server: ScriptedServer, status: int, code: str
) -> None:
    server.reply((status, {"Retry-After": "0"}, b""))
    with raises_problem(code):
        call(server.url, "predict", b"pixels", retry=RETRY_FOR_AN_HOUR)
    assert len(server.requests) == 1


def test_a_refused_connection_is_unreachable(call: Call, closed_url: str) -> None:
    with raises_problem("unreachable", match=f"no connection to {closed_url}"):
        call(closed_url, "models", retry=NO_RETRY)


def test_a_closed_connection_is_lost(call: Call, server: ScriptedServer) -> None:
    server.reply(None)
    with raises_problem("connection_lost"):
        call(server.url, "models", retry=NO_RETRY)


def test_a_missing_response_is_a_timeout(call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with raises_problem("timed_out"):
            call(url, "models", timeouts=Timeouts(read_s=0.05), retry=RETRY_FOR_AN_HOUR)


def test_many_results_are_in_order_with_problems_in_their_positions(
    call: Call, server: ScriptedServer, tmp_path: Path
) -> None:
    server.reply(prediction_reply())
    images = [b"one", tmp_path / "nowhere.png", *[b"more"] * 20, "a\0b", b"last"]
    results = call(server.url, "predict_many", images, 3)
    assert [getattr(result, "code", "prediction") for result in results] == [
        "prediction",
        "unreadable_file",
        *["prediction"] * 20,
        "unreadable_file",
        "prediction",
    ]


def test_as_many_requests_run_at_the_same_time_as_asked_for(
    call: Call, server: ScriptedServer
) -> None:
    server.reply(prediction_reply())
    meeting = threading.Barrier(3, timeout=60)
    running: list[object] = []
    counts: list[int] = []

    def meet() -> None:
        running.append(None)
        meeting.wait()
        time.sleep(0.02)  # for one more than asked for
        counts.append(len(running))
        running.pop()

    server.before_post = meet
    assert len(call(server.url, "predict_many", [b"pixels"] * 12, 3)) == 12
    assert max(counts) == 3


def test_requests_end_with_the_caller_and_images_are_consumed_lazily(
    server: ScriptedServer,
) -> None:
    server.reply(prediction_reply())
    answered, done = threading.Semaphore(CONCURRENCY), threading.Event()
    server.before_post = lambda: answered.acquire(blocking=False) or done.wait(60)
    taken: list[int] = []

    def images() -> Iterator[bytes]:
        for number in range(1000):
            taken.append(number)
            yield b"pixels"

    async def first() -> None:
        async with AsyncTriageClient(server.url) as client:
            async with aclosing(client.predict_many(images(), CONCURRENCY)) as results:
                await anext(results)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(first())
    done.set()
    assert len(taken) <= 2 * CONCURRENCY


def test_blocking_calls_consume_images_lazily_in_the_thread_of_the_caller(
    server: ScriptedServer,
) -> None:
    server.reply(prediction_reply())
    consumers: list[threading.Thread] = []

    def images() -> Iterator[bytes]:
        while True:
            consumers.append(threading.current_thread())
            yield b"pixels"

    with (
        TriageClient(server.url) as client,
        closing(client.predict_many(images(), CONCURRENCY)) as results,
    ):
        assert next(results).label == "nv"
    assert len(consumers) <= 2 * CONCURRENCY
    assert set(consumers) == {threading.main_thread()}


@pytest.mark.parametrize("method", MANY)
def test_an_unknown_option_and_a_concurrency_below_one_are_errors(
    call: Call, server: ScriptedServer, method: str
) -> None:
    with pytest.raises(TypeError, match="sample"):
        call(server.url, method, [b"pixels"], options={"sample": 4})
    with pytest.raises(ValueError, match="concurrency"):
        call(server.url, method, [b"pixels"], 0)
    assert server.requests == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "lesions"
    (folder / "more").mkdir(parents=True)
    for name in ("2.png", "1.png", "more/3.jpg", "notes.txt"):
        (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize("method", [*MANY, "predict_batch", "triage_batch"])
def test_a_folder_stands_for_the_images_in_it_and_is_never_read_by_its_letters(
    call: Call, server: ScriptedServer, folder: Path, method: str
) -> None:
    server.reply((422, {}, b""))  # in place of every result, if the method returns problems
    for images in (str(folder), folder, [folder]):
        server.requests.clear()
        call_or_raise(call, server.url, method, images)
        sent = b"".join(request.body for request in server.requests)
        assert [name in sent for name in (b"1.png", b"2.png", b"more/3.jpg")] == [True] * 3
        assert b"notes.txt" not in sent


def call_or_raise(call: Call, url: str, method: str, images: object) -> None:
    """Calls a method; a batch raises the problem of its request."""
    if "batch" in method:
        with raises_problem("unprocessable"):
            call(url, method, images)
    else:
        call(url, method, images)


def test_files_that_are_left_out_of_a_folder_are_counted(
    server: ScriptedServer, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.reply(prediction_reply())
    assert len(call_blocking(server.url, "predict_many", folder)) == 3
    (record,) = caplog.records
    assert ".txt: 1" in record.getMessage()


def test_one_image_in_place_of_many_is_one_image(call: Call, server: ScriptedServer) -> None:
    server.reply(prediction_reply())
    for image in (b"pixels", BytesIO(b"pix\nels")):
        assert len(call(server.url, "predict_many", image)) == 1


def test_a_problem_names_the_file_that_it_belongs_to(
    call: Call, server: ScriptedServer, folder: Path, tmp_path: Path
) -> None:
    missing, refused = tmp_path / "nowhere.png", folder / "1.png"
    server.reply(problem_reply(422, "unusable_image"))
    for image in (missing, str(refused)):
        with raises_problem("unreadable_file", "unusable_image") as raised:
            call(server.url, "predict", image)
        assert raised.value.file == str(image)
        assert str(image) in str(raised.value)
    problems = call(server.url, "triage_many", [missing, refused, b"bytes"])
    assert [problem.file for problem in problems] == [str(missing), str(refused), None]
    with refused.open("rb") as opened, raises_problem("unusable_image") as raised:
        call(server.url, "predict", opened)
    assert raised.value.file == str(refused)


def batch_reply(count: int) -> Reply:
    return 200, {}, json.dumps({"results": [PREDICTION] * count}).encode()


def files_in(request: ReceivedRequest) -> int:
    return request.body.count(b'name="files"')


def test_a_batch_is_split_where_the_service_accepts_no_more(
    call: Call, server: ScriptedServer, tmp_path: Path
) -> None:
    server.reply(*map(batch_reply, (32, 7)))
    images = [b"pixels"] * 39
    images.insert(3, tmp_path / "nowhere.png")  # type: ignore[arg-type]
    results = call(server.url, "predict_batch", images)
    assert [hasattr(result, "code") for result in results] == [n == 3 for n in range(40)]
    assert results[3].file == str(images[3])
    assert [files_in(request) for request in server.requests] == [32, 7]


def test_an_image_that_is_larger_than_a_batch_is_sent_alone(
    call: Call, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eulerlora_client.client.MAX_BATCH_BYTES", 10)
    server.reply(problem_reply(413, "body_too_large"), batch_reply(1))
    results = call(server.url, "predict_batch", [b"more pixels", b"pixels"])
    assert [hasattr(result, "code") for result in results] == [True, False]
    assert [files_in(request) for request in server.requests] == [1, 1]


@pytest.mark.parametrize("code", ["invalid_upload", "body_too_large"])
def test_a_service_with_lower_limits_gets_smaller_batches(
    call: Call, server: ScriptedServer, code: str
) -> None:
    refused = problem_reply(422, code)
    server.reply(refused, batch_reply(2), refused, batch_reply(1), refused)
    results = call(server.url, "predict_batch", [b"pixels"] * 4)
    assert [getattr(result, "code", "prediction") for result in results] == [
        "prediction", "prediction", "prediction", code
    ]  # fmt: skip
    assert [files_in(request) for request in server.requests] == [4, 2, 2, 1, 1]


LOCAL = [
    "localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.9.9", "127.1", "0x7f.1",
    "2130706433", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1",
]  # fmt: skip
REMOTE = ["localhost.example", "clinic.example", "127.0.0.1.example", "10.0.0.1", "2001:db8::1"]


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch, server: ScriptedServer) -> str:
    """The address of a scripted server in all variables that name a proxy."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    address = server.url.replace("http://", "http://user:secret@")
    for name in ("HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, address)
    return address


@pytest.mark.parametrize("host", [*LOCAL, *REMOTE])
def test_this_machine_is_recognised_by_every_name_that_needs_no_resolver(
    proxy: str, host: str
) -> None:
    url = f"http://[{host}]:8000" if ":" in host else f"http://{host}:8000"
    assert (AsyncTriageClient(url).proxy is None) == (host in LOCAL)


def test_no_picture_for_this_machine_goes_to_a_proxy(
    call: Call, server: ScriptedServer, proxy: str, closed_url: str
) -> None:
    for url in (closed_url, closed_url.replace("127.0.0.1", "localhost")):
        with raises_problem("unreachable"):
            call(url, "predict", b"pixels", retry=NO_RETRY)
    assert server.requests == []


def test_a_proxy_that_cannot_be_used_does_not_disturb_requests_to_this_machine(
    call: Call, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.reply(prediction_reply())
    for unusable in ("socks5://127.0.0.1:1", "nonsense://x", "http://x:y"):
        monkeypatch.setenv("ALL_PROXY", unusable)
        monkeypatch.setenv("HTTP_PROXY", unusable)
        assert call(server.url, "predict", b"pixels").label == "nv"
        with pytest.raises(SettingsError) as raised:
            call("http://clinic.example", "predict", b"pixels")
        assert unusable not in str(raised.value)


def test_requests_to_other_machines_use_the_proxy_and_name_it_without_its_password(
    call: Call, server: ScriptedServer, proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.reply(prediction_reply())
    assert call("http://clinic.example", "predict", b"pixels").label == "nv"
    (request,) = server.requests
    assert request.path == "http://clinic.example/predict"
    assert "Proxy-Authorization" in request.headers
    with raises_problem("unreachable", match="through the proxy http://127") as raised:
        call("https://clinic.example", "predict", b"pixels", retry=NO_RETRY)  # CONNECT is refused
    assert "secret" not in str(raised.value)
    monkeypatch.setenv("NO_PROXY", "clinic.example")
    assert AsyncTriageClient("http://www.clinic.example:8000").proxy is None


def test_a_closed_client_says_so(server: ScriptedServer) -> None:
    server.reply(prediction_reply())
    client = TriageClient(server.url)
    many = client.predict_many([b"pixels"] * 3)
    client.close()
    for call in (lambda: client.predict(b"pixels"), client.models, lambda: next(many)):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    client.close()

    async def closed() -> None:
        other = AsyncTriageClient(server.url)
        await other.close()
        await other.models()

    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(closed())


def test_a_client_of_another_event_loop_says_so(server: ScriptedServer) -> None:
    server.reply(prediction_reply())
    client = AsyncTriageClient(server.url)
    asyncio.run(client.predict(b"pixels"))
    with pytest.raises(RuntimeError, match="one event loop"):
        asyncio.run(client.predict(b"pixels"))


def test_closing_ends_requests_in_other_threads(closed_url: str) -> None:
    client = TriageClient(closed_url, retry=RETRY_FOR_AN_HOUR)
    ended: list[BaseException] = []

    def ask() -> None:
        try:
            client.predict(b"pixels")
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while not asyncio.all_tasks(client._loop):
        pass
    client.close()
    thread.join()
    assert [type(error) for error in ended] == [CancelledError]

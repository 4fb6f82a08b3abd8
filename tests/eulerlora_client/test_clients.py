"""The same questions, answers, repeats and problems."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pytest

from eulerlora_client import (
    AsyncTriageClient,
    ConnectionLost,
    NotReady,
    Patience,
    QuotaExceeded,
    RequestRefused,
    ServiceFailed,
    TimedOut,
    Timeouts,
    TriageClient,
    Unavailable,
    UnexpectedAnswer,
    UnknownModel,
    Unreachable,
    UnreadableFile,
)

Ask = Callable[..., Any]
SHORT = Patience(service_s=0, quota_s=0)
LONG = Patience(service_s=60, quota_s=60)


def ask_blocking(url: str, method: str, *arguments: object, **options: Any) -> Any:
    question = options.pop("question", {})
    with TriageClient(url, **options) as client:
        found = getattr(client, method)(*arguments, **question)
        return list(found) if method == "predict_many" else found


def ask_with_asyncio(url: str, method: str, *arguments: object, **options: Any) -> Any:
    question = options.pop("question", {})

    async def ask() -> Any:
        async with AsyncTriageClient(url, **options) as client:
            found = getattr(client, method)(*arguments, **question)
            if method == "predict_many":
                return [each async for each in found]
            return await found

    return asyncio.run(ask())


@pytest.fixture(params=[ask_blocking, ask_with_asyncio], ids=["blocking", "asyncio"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """(url, method, *arguments, **options of the client, question) -> what the client gives."""
    return request.param


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that refuses connections: its port is bound, and nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_a_path_bytes_and_a_file_are_the_same_question(
    ask: Ask, script, answered, tmp_path: Path
) -> None:
    script.reply(answered())
    path = tmp_path / "Jane Doe.png"
    path.write_bytes(b"pixels")
    for image in (path, str(path), b"pixels", BytesIO(b"pixels")):
        assert ask(script.url, "predict", image).label == "nv"
    for method, address, headers, body in script.seen:
        assert (method, address) == ("POST", "/predict?mode=det")
        assert b"pixels" in body
        assert b"Jane" not in body
        assert "Authorization" not in headers


def test_all_parameters_and_the_key_are_sent(ask: Ask, script, answered) -> None:
    script.reply(answered())
    question = {"mode": "stoch", "samples": 2, "seed": 7, "model": "a b", "detail": True}
    found = ask(script.url + "/prefix/", "predict", b"pixels", key="elk_1", question=question)
    _, address, headers, _ = script.seen[0]
    assert address == ("/prefix/predict?mode=stoch&samples=2&seed=7&model=a+b&detail=trajectories")
    assert headers["Authorization"] == "Bearer elk_1"
    assert found.trajectory_labels == ("mel", "nv")


def test_a_model_is_asked_for_by_its_quoted_name(ask: Ask, script, told) -> None:
    script.reply(told(404, "unknown_model"))
    with pytest.raises(UnknownModel):
        ask(script.url, "model", "a/b?")
    assert script.seen[0][1] == "/models/a%2Fb%3F"


@pytest.mark.parametrize("image", [Path("nowhere.png"), Path()], ids=repr)
def test_a_file_that_cannot_be_read_is_a_problem_before_anything_is_sent(
    ask: Ask, nobody: str, image: object
) -> None:
    with pytest.raises(UnreadableFile) as found:
        ask(nobody, "predict", image)
    assert (found.value.code, found.value.status) == ("unreadable_file", None)


@pytest.mark.parametrize("image", [None, StringIO("text")])
def test_what_is_no_image_file_is_a_type_error(ask: Ask, nobody: str, image: object) -> None:
    with pytest.raises(TypeError, match="wanted an image as a path, bytes or a binary file"):
        ask(nobody, "predict", image)


def test_a_problem_document_is_told_whole(ask: Ask, script, told) -> None:
    script.reply(told(503, "not_ready", Retry_After="7"))
    with pytest.raises(NotReady) as found:
        ask(script.url, "predict", b"pixels", patience=SHORT)
    assert found.value.__dict__ == {
        "code": "not_ready",
        "status": 503,
        "title": "T",
        "detail": "D",
        "request_id": "r9",
        "retry_after_s": 7,
    }


def test_a_success_that_is_no_prediction_is_told_and_not_asked_again(ask: Ask, script) -> None:
    script.reply((200, {}, b"<html>"))
    with pytest.raises(UnexpectedAnswer):
        ask(script.url, "predict", b"pixels", patience=LONG)
    assert len(script.seen) == 1


@pytest.mark.parametrize(
    "passing",
    [
        (429, {"Retry-After": "0"}, b""),
        (503, {"Retry-After": "0"}, b""),
        (504, {"Retry-After": "Mon, 05 Jan 2026 00:00:00 GMT"}, b""),
        None,
    ],
    ids=["429", "503", "504", "closed"],
)
def test_what_may_pass_is_asked_again_with_the_same_question(
    ask: Ask, script, answered, passing: object
) -> None:
    script.reply(passing, answered())
    assert ask(script.url, "predict", b"pixels", patience=LONG).label == "nv"
    first, second = script.seen
    assert b"pixels" in second[3]
    assert first[:2] == second[:2]


@pytest.mark.parametrize("status", [401, 422, 500, 502])
def test_nothing_else_is_asked_again(ask: Ask, script, status: int) -> None:
    script.reply((status, {"Retry-After": "0"}, b""))
    with pytest.raises((RequestRefused, ServiceFailed)):
        ask(script.url, "predict", b"pixels", patience=LONG)
    assert len(script.seen) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_wait_beyond_our_patience_is_not_begun(ask: Ask, script, status: int) -> None:
    script.reply((status, {"Retry-After": "61"}, b""))
    with pytest.raises((QuotaExceeded, Unavailable)):
        ask(script.url, "predict", b"pixels", patience=LONG)
    assert len(script.seen) == 1


def test_nobody_there(ask: Ask, nobody: str) -> None:
    with pytest.raises(Unreachable, match=f"nothing answers at {nobody}"):
        ask(nobody, "models", patience=SHORT)


def test_a_connection_that_ends_is_lost(ask: Ask, script) -> None:
    script.reply(None)
    with pytest.raises(ConnectionLost):
        ask(script.url, "models", patience=SHORT)


def test_an_answer_that_does_not_come_ends_at_the_timeout(ask: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TimedOut):
            ask(url, "models", timeouts=Timeouts(read_s=0.05), patience=LONG)


def test_a_bad_item_does_not_end_many_and_order_is_kept(
    ask: Ask, script, answered, tmp_path: Path
) -> None:
    script.reply(answered())
    images = [b"one", tmp_path / "nowhere.png", *[b"more"] * 20, tmp_path, b"last"]
    found = ask(script.url, "predict_many", images, 3)
    assert [getattr(each, "code", "answered") for each in found] == [
        "answered",
        "unreadable_file",
        *["answered"] * 20,
        "unreadable_file",
        "answered",
    ]


def test_a_server_that_is_gone_is_the_problem_of_every_item(ask: Ask, nobody: str) -> None:
    found = ask(nobody, "predict_many", [b"1", b"2"], patience=SHORT)
    assert [each.code for each in found] == ["unreachable"] * 2

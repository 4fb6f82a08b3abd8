"""Retries in Ray's proxies, around applications in this process that fail as a proxy does."""

import asyncio
import json
from collections.abc import Callable

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eulerlora_lab.ray_serve.retry import middlewares

PIECES = (b"abc", b"def", b"")


class Attempts:
    """An application that fails in its first attempts, then answers with the body it received.

    A failing attempt receives `reads` pieces of the body.
    """

    def __init__(self, *failures: Callable[[Send], object], reads: int = 3) -> None:
        self._failures = list(failures)
        self._reads = reads
        self.count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.count += 1
        scope["path"] += "/changed"
        if self._failures:
            for _ in range(self._reads):
                await receive()
            failed = self._failures.pop(0)(send)
            if asyncio.iscoroutine(failed):
                await failed
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode() + b" " + body})


def lost(_send: Send) -> None:
    """Ends without a response, as the proxy does when a replica is lost."""


def broken(_send: Send) -> None:
    raise RuntimeError("broken")


async def half(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


def sent(app: ASGIApp, pieces: tuple[bytes, ...] = PIECES, connected: bool = True) -> list[Message]:
    messages: list[Message] = []
    waiting = [
        {"type": "http.request", "body": piece, "more_body": index < len(pieces) - 1}
        for index, piece in enumerate(pieces)
    ]
    if not connected:
        waiting[-1] = {"type": "http.disconnect"}

    async def receive() -> Message:
        return waiting.pop(0)

    async def send(message: Message) -> None:
        messages.append(message)

    scope = {"type": "http", "path": "/predict", "method": "POST", "headers": []}
    (middleware,) = middlewares()  # as the proxy gets them
    asyncio.run(middleware.cls(app)(scope, receive, send))
    return messages


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eulerlora_lab.ray_serve.retry._PAUSE_S", 0)


@pytest.mark.parametrize("reads", [0, 1, 2, 3])
def test_a_request_of_a_lost_replica_is_sent_again_with_its_whole_body(reads: int) -> None:
    app = Attempts(lost, broken, reads=reads)
    assert sent(app)[-1]["body"] == b"/predict/changed abcdef"
    assert app.count == 3


def test_a_response_that_has_begun_is_not_repeated() -> None:
    app = Attempts(half)
    assert [message["type"] for message in sent(app)] == ["http.response.start"]
    assert app.count == 1


def test_a_client_that_has_gone_gets_no_further_attempt() -> None:
    app = Attempts(lost, lost)
    assert sent(app, connected=False) == []
    assert app.count == 1


def test_a_body_that_is_too_long_to_keep_arrives_whole_but_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eulerlora_lab.ray_serve.retry._MAX_BYTES", 4)
    assert sent(Attempts())[-1]["body"] == b"/predict/changed abcdef"
    app = Attempts(lost)
    assert sent(app) == []
    assert app.count == 1
    with pytest.raises(RuntimeError, match="broken"):
        sent(Attempts(broken))


def test_a_request_whose_replicas_are_all_lost_is_refused_with_a_problem() -> None:
    app = Attempts(*[lost] * 5)
    start, body = sent(app)
    assert app.count == 5
    assert start["status"] == 503
    assert dict(start["headers"])[b"retry-after"] == b"5"
    document = json.loads(body["body"])
    assert document["code"] == "not_ready"
    assert document["request_id"]

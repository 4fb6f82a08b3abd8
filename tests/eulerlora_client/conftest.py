"""A server that answers as it is told to, for what the real one says too seldom."""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.service.conftest import (  # noqa: F401 - fixtures
    ask,
    bombs,
    client,
    encode,
    live,
    make_app,
    model,
    photo,
    png,
    png_chunk,
    png_header,
    refused,
)

Reply = tuple[int, Mapping[str, str], bytes] | None
"""Status, headers and body; None closes the connection without an answer."""

PREDICTION: dict[str, Any] = {
    "request_id": "r1",
    "model": "tiny",
    "revision": "sha256:0",
    "mode": "stoch",
    "samples": 2,
    "trajectories": 2,
    "seed": 7,
    "label": "nv",
    "probabilities": {"mel": 0.2, "nv": 0.8},
    "entropy": 0.5,
    "expected_entropy": 0.4,
    "mutual_information": 0.1,
    "msp": 0.8,
    "ood": False,
    "ood_threshold": 0.3,
    "warnings": [],
    "trajectory_probabilities": [[0.6, 0.4], [0.1, 0.9]],
}


@dataclass
class Script:
    """Where the server listens, what it replies in turn (the last reply for ever), what it saw.

    before_post: called before each reply to a POST.
    """

    url: str = ""
    replies: deque[Reply] = field(default_factory=deque)
    seen: list[tuple[str, str, Mapping[str, str], bytes]] = field(default_factory=list)
    before_post: Callable[[], object] = lambda: None

    def reply(self, *replies: Reply) -> None:
        self.replies.extend(replies)

    def next(self) -> Reply:
        return self.replies.popleft() if len(self.replies) > 1 else self.replies[0]


def good(**changes: object) -> Reply:
    return 200, {"Content-Type": "application/json"}, json.dumps(PREDICTION | changes).encode()


def refusal(status: int, code: str = "some_code", **headers: str) -> Reply:
    document = {"status": status, "code": code, "title": "T", "detail": "D", "request_id": "r9"}
    told = {"Content-Type": "application/problem+json"}
    return (
        status,
        told | {name.replace("_", "-"): value for name, value in headers.items()},
        json.dumps(document).encode(),
    )


@pytest.fixture
def script() -> Iterator[Script]:
    """A server on loopback that follows the script."""
    script = Script()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(script))
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield script
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="session")
def told() -> Callable[..., Reply]:
    """(status, code, **headers) -> a problem document."""
    return refusal


@pytest.fixture(scope="session")
def answered() -> Callable[..., Reply]:
    """(**changed fields) -> a prediction."""
    return good


def _handler(script: Script) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            script.seen.append((self.command, self.path, dict(self.headers), body))
            if self.command == "POST":
                script.before_post()
            reply = script.next()
            if reply is None:
                return
            status, headers, content = reply
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(ConnectionError):  # whoever asked may have left
                self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - the base class's name

        def log_message(self, *_: object) -> None:
            pass

    return Handler

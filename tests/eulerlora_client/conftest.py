"""A server with scripted responses, for cases that the real service rarely produces."""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.eulerlora_contract.policy_inputs import PREDICTION
from tests.service.conftest import bombs, live, model, photo

__all__ = ["bombs", "live", "model", "photo"]

Reply = tuple[int, Mapping[str, str], bytes] | None
"""Status, headers and body; None closes the connection without a response."""


@dataclass(frozen=True)
class ReceivedRequest:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class ScriptedServer:
    """Sends the given replies in turn, the last one forever, and records the requests.

    before_post: called before each reply to a POST.
    """

    url: str = ""
    replies: deque[Reply] = field(default_factory=deque)
    requests: list[ReceivedRequest] = field(default_factory=list)
    before_post: Callable[[], object] = lambda: None

    def reply(self, *replies: Reply) -> None:
        self.replies.extend(replies)

    def next_reply(self) -> Reply:
        return self.replies.popleft() if len(self.replies) > 1 else self.replies[0]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    http_server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(scripted))
    scripted.url = f"http://127.0.0.1:{http_server.server_address[1]}"
    thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield scripted
    http_server.shutdown()
    http_server.server_close()
    thread.join()


def prediction_reply(**changes: object) -> Reply:
    return 200, {"Content-Type": "application/json"}, json.dumps(PREDICTION | changes).encode()


def problem_reply(status: int, code: str = "some_code", **headers: str) -> Reply:
    document = {"status": status, "code": code, "title": "T", "detail": "D", "request_id": "r9"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    all_headers = {"Content-Type": "application/problem+json"} | named
    return status, all_headers, json.dumps(document).encode()


def _handler(server: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            server.requests.append(
                ReceivedRequest(self.command, self.path, dict(self.headers), body)
            )
            if self.command == "POST":
                server.before_post()
            reply = server.next_reply()
            if reply is None:
                return
            status, headers, content = reply
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(ConnectionError):  # the client may have disconnected
                self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - the base class's name

        def log_message(self, *_: object) -> None:
            pass

    return Handler

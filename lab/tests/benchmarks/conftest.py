"""A workload on a tiny network with large adapters, and a small server in place of the service."""

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from eulerlora_lab.benchmarks.workload import SMALL, Workload

Respond = Callable[[str, bytes], int]
FakeServer = Callable[[Respond], AbstractContextManager[int]]


@pytest.fixture(scope="session")
def fake_server() -> FakeServer:
    """A context manager: (path, body -> status, 0 to disconnect) -> port of a server."""
    return _fake_server


@contextmanager
def _fake_server(respond: Respond) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status = respond(self.path, body)
            if status == 0:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Server-Timing", "decode;dur=1.50, model;dur=20")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST  # noqa: N815 - the name of the base class

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 1024  # connections that arrive at once; above it, some are refused

    server = Server(("127.0.0.1", 0), Handler)
    assert isinstance(server, socketserver.TCPServer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def workload_of() -> Callable[[int], Workload]:
    """Makes a workload of the smallest network with the given number of images."""
    return lambda images: Workload.random(SMALL.large, images, torch.device("cpu"))

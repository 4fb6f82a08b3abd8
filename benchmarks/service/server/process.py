"""Server processes: `eulerlora serve` and the servers it is compared with."""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from benchmarks.service.server.process_tree import TERMINATE_TIMEOUT_S, terminate

ROOT = Path(__file__).parents[3]
START_TIMEOUT_S = 180.0
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")


class ServerStartError(Exception):
    """A server exited or did not become ready in time."""


@dataclass(frozen=True)
class Server:
    """A ready server. process: root of its process tree."""

    port: int
    process: "subprocess.Popen[bytes]"

    @property
    def pid(self) -> int:
        """Process ID of the root of its process tree."""
        return self.process.pid


@contextmanager
def eulerlora_server(options: Sequence[str] = ()) -> Iterator[Server]:
    """Runs `eulerlora serve` on a free port while the block runs.

    options: of the command. The references are in float32, and so is the server unless the options
    state a precision.
    """
    command = ["-m", "eulerlora_client", "serve", "--port", "0", "--precision", "float32", *options]
    with server_process(command, "/readyz") as server:
        yield server


@contextmanager
def server_process(
    arguments: Sequence[str],
    ready_path: str,
    port: int | None = None,
    grace_s: float = TERMINATE_TIMEOUT_S,
) -> Iterator[Server]:
    """Runs a Python program while the block runs; it is ready if `ready_path` returns 200.

    port: None reads it from the program's output. grace_s: time from SIGTERM to SIGKILL. Raises
    ServerStartError.
    """
    with tempfile.TemporaryFile("w+b") as log:  # an unread pipe would fill up
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            server = Server(port or _printed_port(process, log.fileno()), process)
            _wait_until_ready(server, ready_path, log.fileno())
            yield server
        finally:
            terminate(process.pid, grace_s)
            process.wait(TERMINATE_TIMEOUT_S)


def _printed_port(process: "subprocess.Popen[bytes]", log: int) -> int:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if match := ADDRESS.search(_text(log)):
            return int(match.group(1))
        _check_alive(process, log)
        time.sleep(0.05)
    raise ServerStartError(f"expected an address within {START_TIMEOUT_S:.0f} s: {_text(log)}")


def _wait_until_ready(server: Server, path: str, log: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if status(server.port, path) == 200:
            return
        _check_alive(server.process, log)
        time.sleep(0.05)
    raise ServerStartError(f"expected a ready server within {START_TIMEOUT_S:.0f} s: {_text(log)}")


def status(port: int, path: str, timeout_s: float = 5.0) -> int | None:
    """Returns the status of a GET on a new connection, or None if the connection fails."""
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def _check_alive(process: "subprocess.Popen[bytes]", log: int) -> None:
    if process.poll() is not None:
        raise ServerStartError(
            f"expected a running server, got exit status {process.returncode}: {_text(log)}"
        )


def _text(log: int) -> str:
    return Path(f"/proc/self/fd/{log}").read_text(errors="replace")

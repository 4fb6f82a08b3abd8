"""Servers as processes of their own: ours, and whatever else is to be compared."""

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

from benchmarks.service.server.process_tree import END_S, end

ROOT = Path(__file__).parents[3]
START_S = 180.0
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")


class NotStarted(Exception):  # noqa: N818 - read as a sentence
    """A server ended, or was not ready in time."""


@dataclass(frozen=True)
class Server:
    """A server that was ready. process: the root of its tree."""

    port: int
    process: "subprocess.Popen[bytes]"

    @property
    def pid(self) -> int:
        """Of the root of its tree."""
        return self.process.pid


@contextmanager
def eulerlora_server(options: Sequence[str] = ()) -> Iterator[Server]:
    """`eulerlora serve` on a free port. options: of that command."""
    command = ["-m", "eulerlora_client", "serve", "--port", "0", *options]
    with server_process(command, "/readyz") as server:
        yield server


@contextmanager
def server_process(
    arguments: Sequence[str],
    ready_path: str,
    port: int | None = None,
    grace_s: float = END_S,
) -> Iterator[Server]:
    """A Python program that serves until the block ends; ready when `ready_path` answers 200.

    port: where it is not to be read from what the program prints. grace_s: after SIGTERM, before
    its processes are killed. Raises NotStarted.
    """
    with tempfile.TemporaryFile("w+b") as log:  # a pipe that nobody reads would fill up
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            server = Server(port or _printed_port(process, log.fileno()), process)
            _wait_until_ready(server, ready_path, log.fileno())
            yield server
        finally:
            end(process.pid, grace_s)
            process.wait(END_S)


def _printed_port(process: "subprocess.Popen[bytes]", log: int) -> int:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if found := ADDRESS.search(_text(log)):
            return int(found.group(1))
        _check_alive(process, log)
        time.sleep(0.05)
    raise NotStarted(f"no address within {START_S:.0f} s: {_text(log)}")


def _wait_until_ready(server: Server, path: str, log: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if status(server.port, path) == 200:
            return
        _check_alive(server.process, log)
        time.sleep(0.05)
    raise NotStarted(f"not ready within {START_S:.0f} s: {_text(log)}")


def status(port: int, path: str, timeout_s: float = 5.0) -> int | None:
    """The status that a GET on a fresh connection gets, or None."""
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
        raise NotStarted(f"ended with status {process.returncode}: {_text(log)}")


def _text(log: int) -> str:
    return Path(f"/proc/self/fd/{log}").read_text(errors="replace")

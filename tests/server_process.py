"""`eulerlora serve` in a process of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

START_S = 120  # torch alone takes many seconds to import on a busy machine
END_S = 60
MAIN = "from eulerlora.command_line import main; main()"


@dataclass(frozen=True)
class ServerProcess:
    """The process, and the loopback port it was told to listen on."""

    process: "subprocess.Popen[str]"
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def status(self, path: str) -> int | None:
        """The status of a GET; None where nobody answers."""
        try:
            return httpx.get(self.url + path, timeout=END_S).status_code
        except httpx.TransportError:
            return None

    def wait_for(self, path: str, status: int | None) -> None:
        """Waits until a GET has this status, while the process lives."""
        wait_until(
            lambda: self.status(path) == status or (self.process.poll() is not None), START_S
        )
        assert status is None or self.process.poll() is None, self.process.communicate()

    def predict(self, png: bytes, **query: object) -> httpx.Response:
        return httpx.post(
            f"{self.url}/predict",
            params={key: str(value) for key, value in query.items()},
            content=png,
            headers={"Content-Type": "image/png"},
            timeout=END_S,
        )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """The exit status and stderr, once the process has ended."""
        _, log = self.process.communicate(timeout=END_S)
        return self.process.returncode, log


@contextmanager
def serving(*arguments: object, program: str = MAIN) -> Iterator[ServerProcess]:
    """`eulerlora serve ARGUMENTS --port PORT`; the process does not outlive the block.

    program: Python that calls `main`, after whatever a test has to change.
    """
    port = free_port()
    command = [sys.executable, "-c", program, "serve", *map(str, arguments), "--port", str(port)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        yield ServerProcess(process, port)
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Waits for a condition, and fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)

"""`eulerlora serve` in a process of its own."""

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from service.settings import PREFIX

START_S = 300
END_S = 120
PATIENT = {  # a busy machine is no fault of the server's, nor of its clients
    "DEADLINE_S": "600",
    "BODIES__STALL_TIMEOUT_S": "600",
    "BODIES__UPLOAD_TIMEOUT_S": "600",
    "CONNECTIONS__HEADER_TIMEOUT_S": "600",
    "DECODING__TIMEOUT_S": "120",
    "LIFE__PROBE_TIMEOUT_S": "600",
    "LIFE__SHUTDOWN_S": "600",
}

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["service.process"])  # to import torch takes seconds, but only once


def unchanged() -> None:
    """Leaves the service as it is."""


@dataclass(frozen=True)
class ServerProcess:
    """The process, the loopback port it was told to listen on, and the file of its stderr."""

    process: BaseProcess
    port: int
    log_file: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What the process has written to stderr so far."""
        return self.log_file.read_text()

    def status(self, path: str) -> int | None:
        """The status of a GET; None where nobody answers."""
        try:
            return httpx.get(self.url + path, timeout=END_S).status_code
        except httpx.TransportError:
            return None

    def wait_for(self, path: str, status: int) -> None:
        """Waits until a GET has this status; the process must live."""

        def reached() -> bool:
            assert self.process.is_alive(), self.log
            return self.status(path) == status

        wait_until(reached, START_S)

    def predict(self, png: bytes, **query: str) -> httpx.Response:
        """The response of /predict to a raw body."""
        url, headers = f"{self.url}/predict", {"Content-Type": "image/png"}
        return httpx.post(url, params=query, content=png, headers=headers, timeout=END_S)

    def signal(self, number: signal.Signals) -> None:
        """Sends the process a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def ended(self) -> tuple[int, str]:
        """The exit status and stderr, once the process has ended."""
        self.process.join(START_S)
        assert self.process.exitcode is not None, "it did not end"
        return self.process.exitcode, self.log


@contextmanager
def serving(
    *arguments: object, change: Callable[[], object] = unchanged
) -> Iterator[ServerProcess]:
    """`eulerlora serve ARGUMENTS --port PORT`; the process does not outlive the block.

    It refuses nothing for load, however slow the machine is. change: called in the process before
    it serves; a function of a module, for it is pickled.
    """
    with reserved_port() as port, TemporaryDirectory() as folder:
        words = ["eulerlora", "serve", *map(str, arguments), "--port", str(port)]
        log = Path(folder, "stderr")
        log.touch()
        process = FORKS.Process(target=_serve, args=(words, log, change))
        process.start()
        try:
            yield ServerProcess(process, port, log)
        finally:
            process.kill()
            process.join()


def _serve(words: list[str], log: Path, change: Callable[[], object]) -> None:
    from eulerlora_client.commands.program import main  # noqa: PLC0415 - only where it is served

    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), sys.stderr.fileno())
    sys.argv = words
    os.environ.update({PREFIX + name: value for name, value in PATIENT.items()})
    change()
    main()


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that nobody gets by chance while the block runs; who names it may listen on it."""
    with socket.socket() as holder:  # bound and not listening: Linux lets one more socket bind
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Waits for a condition, and fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)

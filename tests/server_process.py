"""`eulerlora serve` in a separate process."""

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from service.decoding.fork_server import FORK_SERVER

START_S = 300
END_S = 120
LONG_TIMEOUTS = {  # tests must pass on a busy machine
    "DEADLINE_S": "600",
    "BODIES__STALL_TIMEOUT_S": "600",
    "BODIES__UPLOAD_TIMEOUT_S": "600",
    "CONNECTIONS__HEADER_TIMEOUT_S": "600",
    "DECODING__TIMEOUT_S": "120",
    "LIFE__PROBE_TIMEOUT_S": "600",
    "LIFE__GRACE_S": "2000",
    "PAGE_REQUESTS_PER_MINUTE": "1000000",
}

AS_THE_LIBRARY = ("--precision", "float32", "--runtime", "torch")
"""Options with the library's defaults. Those of the command depend on the machine, and every start
would compile a graph.
"""

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["service.process"])  # imports torch once for all servers


def unchanged() -> None:
    """Changes nothing."""


@dataclass(frozen=True)
class ServerProcess:
    """The process, its loopback port and the file with its stderr."""

    process: BaseProcess
    port: int
    log_file: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """The contents of stderr so far."""
        return self.log_file.read_text()

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=END_S)

    def status(self, path: str) -> int | None:
        """The status of a GET; None without a connection."""
        try:
            return self.get(path).status_code
        except httpx.TransportError:
            return None

    def wait_for(self, path: str, status: int) -> None:
        """Waits until a GET has this status; fails if the process ends."""

        def reached() -> bool:
            assert self.process.is_alive(), self.log
            return self.status(path) == status

        wait_until(reached, START_S)

    def predict(self, png: bytes, **query: str) -> httpx.Response:
        url, headers = f"{self.url}/predict", {"Content-Type": "image/png"}
        return httpx.post(url, params=query, content=png, headers=headers, timeout=END_S)

    def post(self, path: str, content: bytes, media_type: str) -> httpx.Response:
        headers = {"Content-Type": media_type}
        return httpx.post(self.url + path, content=content, headers=headers, timeout=END_S)

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def wait_for_exit(self) -> tuple[int, str]:
        """Waits for the process to end; returns its exit status and stderr."""
        self.process.join(START_S)
        assert self.process.exitcode is not None, "the process did not end"
        return self.process.exitcode, self.log


@contextmanager
def serving(
    *arguments: object,
    defaults: Sequence[str] = AS_THE_LIBRARY,
    change: Callable[[], object] = unchanged,
) -> Iterator[ServerProcess]:
    """Runs `eulerlora serve DEFAULTS ARGUMENTS --port PORT` while the context is open.

    All time limits are long.

    Args:
        arguments: They override `defaults`.
        defaults: Tests compare answers with those of the library.
        change: A function that the process calls before it serves; it must be picklable.
    """
    with reserved_port() as port, TemporaryDirectory() as folder:
        words = ["eulerlora", "serve", *defaults, *map(str, arguments)]
        words += ["--port", str(port)]
        log = Path(folder, "stderr")
        log.touch()
        control = FORK_SERVER.start()  # imports torch once for the decoders of all servers
        process = FORKS.Process(target=_serve, args=(words, log, change, control))
        process.start()
        try:
            yield ServerProcess(process, port, log)
        finally:
            process.kill()
            process.join()


def _serve(
    words: list[str], log: Path, change: Callable[[], object], control: socket.socket
) -> None:
    from eulerlora_contract.__main__ import main  # noqa: PLC0415 - only in the server

    FORK_SERVER._control = control
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), sys.stderr.fileno())
    sys.argv = words
    os.environ.update({"EULERLORA_SERVE_" + name: value for name, value in LONG_TIMEOUTS.items()})
    change()
    main()


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yields a port that the system gives to no other process; the server can still bind it."""
    with (
        socket.socket() as holder
    ):  # bound but not listening: with SO_REUSEADDR one more socket may bind
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Waits until the condition is true; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.02)

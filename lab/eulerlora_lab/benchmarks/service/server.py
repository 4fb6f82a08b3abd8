"""Server processes, ours and those it is compared with, and the memory of their process trees."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from statistics import median
from typing import Self

import psutil

ROOT = Path(__file__).parents[4]
_START_TIMEOUT_S = 900.0  # a server that ends is noticed at once
TERMINATE_TIMEOUT_S = 60.0
_WITHOUT_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_WINDOW = 0.05  # share of the time at its start and at its end


def tree(pid: int) -> list[psutil.Process]:
    """The process and its live descendants; empty if the process does not exist."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def memory(pid: int) -> int:
    """The memory of the tree in bytes; shared pages are divided among processes (PSS).

    The kernel walks all pages of each process, which blocks its memory allocations for about
    0.1 s.
    """
    return _sum(pid, lambda process: int(process.memory_full_info().pss))


def resident(pid: int) -> int:
    """The RSS of the tree in bytes, without blocking it; shared pages count repeatedly."""
    return _sum(pid, lambda process: int(process.memory_info().rss))


def _sum(pid: int, measure: Callable[[psutil.Process], int]) -> int:
    total = 0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            total += measure(process)
    return total


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """Suspends the tree (SIGSTOP) while the block runs, so that it uses no CPU time."""
    stopped = tree(pid)
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in reversed(stopped):
            with suppress(psutil.NoSuchProcess):
                process.resume()


def terminate(pid: int, grace_s: float = TERMINATE_TIMEOUT_S) -> None:
    """Sends SIGTERM to the root, and SIGKILL to the processes left after `grace_s`."""
    processes = tree(pid)
    if processes:
        processes[0].terminate()
    _, left = psutil.wait_procs(processes, timeout=grace_s)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=TERMINATE_TIMEOUT_S)


@dataclass(frozen=True)
class ServerProcess:
    """A ready server.

    Attributes:
        process: Root of its process tree.
    """

    port: int
    process: "subprocess.Popen[bytes]"

    @property
    def pid(self) -> int:
        return self.process.pid


def eulerlora_server(options: Sequence[str] = ()) -> AbstractContextManager[ServerProcess]:
    """Runs `eulerlora serve` while the block runs.

    options: of the command. The references run in float32 by torch, and so does the server unless
    the options state a precision and a runtime.
    """
    port = free_port()
    command = ["-m", "eulerlora_contract", "serve", "--port", str(port)]
    command += ["--precision", "float32", "--runtime", "torch"]
    trusted = {"EULERLORA_SERVE_TRUSTED_PROXIES": "127.0.0.1"}  # clients name themselves
    return server_process([*command, *options], port, "/readyz", environment=trusted)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def server_process(
    arguments: Sequence[str],
    port: int,
    ready_path: str,
    grace_s: float = TERMINATE_TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
) -> Iterator[ServerProcess]:
    """Runs a Python program while the block runs; it is ready if `ready_path` returns 200.

    Args:
        arguments: Of Python.
        port: On which the program listens.
        ready_path: Path of the probe.
        grace_s: Time from SIGTERM to SIGKILL.
        environment: Variables to add.

    Raises:
        ChildProcessError: If it ends before it is ready.
        TimeoutError: If it is not ready in time.
    """
    with tempfile.TemporaryFile("w+b") as log:  # an unread pipe would fill up
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            server = ServerProcess(port, process)
            _wait_until_ready(server, ready_path, log.fileno())
            yield server
        finally:
            terminate(process.pid, grace_s)
            process.wait(TERMINATE_TIMEOUT_S)


def _wait_until_ready(server: ServerProcess, path: str, log: int) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if status(server.port, path) == 200:
            return
        if server.process.poll() is not None:
            raise ChildProcessError(
                "expected a running server, got exit status "
                f"{server.process.returncode}: {_text(log)}"
            )
        time.sleep(0.05)
    raise TimeoutError(f"expected a ready server within {_START_TIMEOUT_S:.0f} s: {_text(log)}")


def status(port: int, path: str, timeout_s: float = 5.0, image: bytes | None = None) -> int | None:
    """The status of a request on a new connection, or None if the connection fails.

    image: JPEG to POST; None for a GET.
    """
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", image, {"Content-Type": "image/jpeg"}
    )
    try:
        with _WITHOUT_PROXY.open(request, timeout=timeout_s) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, HTTPException):
        return None


def _text(log: int) -> str:
    return Path(f"/proc/self/fd/{log}").read_text(errors="replace")


@dataclass(frozen=True)
class MemorySample:
    """A measurement of the memory of a process tree.

    Attributes:
        at_s: On the monotonic clock.
        rss: In bytes.
    """

    at_s: float
    rss: int

    @classmethod
    def of(cls, pid: int) -> Self:
        return cls(time.monotonic(), resident(pid))


@contextmanager
def sampled(pid: int, every_s: float) -> Iterator[list[MemorySample]]:
    """Samples the tree's memory while the block runs, into the returned list."""
    samples = [MemorySample.of(pid)]
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(every_s):
            samples.append(MemorySample.of(pid))

    thread = threading.Thread(target=sample, name="memory")
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
        samples.append(MemorySample.of(pid))


def growth(samples: Sequence[MemorySample], warmup_s: float) -> float:
    """The relative growth of memory from `warmup_s` to the end.

    Start and end are medians over 5% of the time between them, or the nearest sample.
    """
    started, ended = samples[0].at_s + warmup_s, samples[-1].at_s
    window = _WINDOW * (ended - started)
    later = [sample for sample in samples if sample.at_s >= started] or [samples[-1]]
    first = [sample.rss for sample in later if sample.at_s <= started + window]
    last = [sample.rss for sample in later if sample.at_s >= ended - window]
    return median(last) / median(first or [later[0].rss]) - 1

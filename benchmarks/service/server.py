"""Server processes, ours and those it is compared with, and the memory of their process trees."""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from statistics import median

import psutil

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 180.0
TERMINATE_TIMEOUT_S = 60.0
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")
WITHOUT_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
WINDOW = 0.05  # share of the time at its start and at its end


@dataclass(frozen=True)
class Memory:
    """Memory of a process tree in bytes.

    rss: counts shared pages for every process. pss: divides shared pages among the processes;
    None if not measured.
    """

    at_s: float
    rss: int
    pss: int | None


def tree(pid: int) -> list[psutil.Process]:
    """Returns the process and its live descendants; empty if the process does not exist."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def memory(pid: int) -> Memory:
    """Returns RSS and PSS of the tree.

    The kernel walks all pages of each process, which blocks its memory allocations for about
    0.1 s.
    """
    rss = pss = 0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            info = process.memory_full_info()
            rss += info.rss
            pss += info.pss
    return Memory(time.monotonic(), rss, pss)


def resident(pid: int) -> Memory:
    """Returns the RSS of the tree, without blocking it."""
    rss = 0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            rss += process.memory_info().rss
    return Memory(time.monotonic(), rss, None)


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
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Runs a Python program while the block runs; it is ready if `ready_path` returns 200.

    port: None reads it from the program's output. grace_s: time from SIGTERM to SIGKILL.
    environment: variables to add. Raises ServerStartError.
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


def status(port: int, path: str, timeout_s: float = 5.0, image: bytes | None = None) -> int | None:
    """Returns the status of a request on a new connection, or None if the connection fails.

    image: JPEG to POST; None for a GET.
    """
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", image, {"Content-Type": "image/jpeg"}
    )
    try:
        with WITHOUT_PROXY.open(request, timeout=timeout_s) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, HTTPException):
        return None


def _check_alive(process: "subprocess.Popen[bytes]", log: int) -> None:
    if process.poll() is not None:
        raise ServerStartError(
            f"expected a running server, got exit status {process.returncode}: {_text(log)}"
        )


def _text(log: int) -> str:
    return Path(f"/proc/self/fd/{log}").read_text(errors="replace")


@contextmanager
def sampled(
    pid: int, every_s: float, measure: Callable[[int], Memory] = memory
) -> Iterator[list[Memory]]:
    """Samples the tree's memory while the block runs, into the returned list."""
    samples = [measure(pid)]
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(every_s):
            samples.append(measure(pid))

    thread = threading.Thread(target=sample, name="memory")
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
        samples.append(measure(pid))


def growth(samples: Sequence[Memory], warmup_s: float) -> float:
    """Returns the relative growth of RSS from `warmup_s` to the end.

    Start and end are medians over 5% of the time between them, or the nearest sample.
    """
    started, ended = samples[0].at_s + warmup_s, samples[-1].at_s
    window = WINDOW * (ended - started)
    later = [sample for sample in samples if sample.at_s >= started] or [samples[-1]]
    first = [sample for sample in later if sample.at_s <= started + window] or later[:1]
    last = [sample for sample in later if sample.at_s >= ended - window]
    before, after = (
        median(sample.rss for sample in window_samples) for window_samples in (first, last)
    )
    return after / before - 1

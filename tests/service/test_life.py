"""A real process's life: probes while it loads, signals, reloads under load, failing checks."""

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx
import pytest
import torch
from fastapi import FastAPI

from eulerlora.checkpoint import save_checkpoint, stored_revision
from service import commands
from service.app import Service
from service.inference import engine
from service.lifecycle import server as server_module
from service.lifecycle import supervisor
from service.lifecycle.health_check import fault_of
from service.lifecycle.loading import CheckedModel
from service.settings import NESTED, PREFIX
from tests.server_process import END_S, START_S, ServerProcess, serving, wait_until

CLIENTS = 4
DRAIN_S = 10_000


def load_for_ever() -> None:
    """In the server's process: its models never come."""

    def stuck(*_: object, **__: object) -> None:
        print("loading", file=sys.stderr, flush=True)
        threading.Event().wait()

    commands.load_checked = stuck  # type: ignore[assignment]


def set_life(**settings: float) -> None:
    """In the server's process: other settings than the defaults."""
    for name, value in settings.items():
        os.environ[f"{PREFIX}LIFE{NESTED}{name.upper()}"] = str(value)


def drain_until_told() -> None:
    """In the server's process: the drain lasts until SIGUSR1."""
    told = threading.Event()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + (DRAIN_S if told.is_set() else 0))
    signal.signal(signal.SIGUSR1, lambda *_: told.set())
    server_module.time = clock  # type: ignore[assignment]
    set_life(drain_s=DRAIN_S)


def break_the_model() -> None:
    """In the server's process: after the first check a weight changes."""
    set_life(probe_interval_s=0.2)
    checks = 0

    async def break_and_ask(checked: CheckedModel, *arguments: Any) -> str | None:
        nonlocal checks
        checks += 1
        if checks > 1:
            with torch.no_grad():
                checked.model.network.heads.bias[:, 0] += 5
        return await fault_of(checked, *arguments)

    supervisor.fault_of = break_and_ask  # type: ignore[assignment]


def lose_the_device() -> None:
    """In the server's process: once it has warmed up, the device fails."""
    warm_up = supervisor.warm_up

    def fail(*_: Any) -> NoReturn:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    async def warm_up_and_fail(*arguments: Any) -> None:
        await warm_up(*arguments)
        engine.predict_rows = fail

    supervisor.warm_up = warm_up_and_fail  # type: ignore[assignment]


def never_end() -> None:
    """In the server's process: the application does not come to its end."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            print("entered", file=sys.stderr, flush=True)
            yield
        finally:
            threading.Event().wait()

    set_life(shutdown_s=0.2)
    server_module.MARGIN_S = 0.5
    service = Service(FastAPI(lifespan=lifespan), lambda *_: asyncio.Event().wait(), 1, print)
    commands.create_service = lambda *_: service  # type: ignore[assignment]


@pytest.fixture
def loading(checkpoint_folder: Path) -> Iterator[ServerProcess]:
    """A server whose model never comes."""
    with serving(checkpoint_folder, change=load_for_ever) as server:
        wait_until(lambda: "loading" in server.log, START_S)
        yield server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_loads_is_alive_not_ready_and_ends_cleanly(
    loading: ServerProcess, png: bytes, number: signal.Signals
) -> None:
    assert loading.status("/livez") == 200
    assert loading.status("/readyz") == 503
    refused = loading.predict(png)
    assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
    assert int(refused.headers["Retry-After"]) >= 1
    loading.signal(number)
    status, log = loading.ended()
    assert status == 0
    assert "Traceback" not in log


def test_a_model_that_breaks_while_it_serves_ends_the_process_with_status_1(
    checkpoint_folder: Path,
) -> None:
    with serving(checkpoint_folder, change=break_the_model) as server:
        status, log = server.ended()
    assert status == 1
    assert "serving tiny" in log
    (line,) = (line for line in log.splitlines() if line.startswith("eulerlora: "))
    assert "model tiny: the known answer is wrong: mode det gave" in line


def test_a_lost_device_is_a_503_and_ends_the_process_with_status_1(
    checkpoint_folder: Path, png: bytes
) -> None:
    with serving(checkpoint_folder, change=lose_the_device) as server:
        server.wait_for("/readyz", 200)
        refused = server.predict(png)
        status, log = server.ended()
    assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
    assert "CUDA" not in refused.text
    assert status == 1
    assert "eulerlora: CUDA error: an illegal memory access was encountered\n" in log


class Clients:
    """Clients that ask one question after another, each on a connection of its own.

    answers: (status, revision) of every answer. lost: errors of requests without an answer.
    """

    def __init__(self, server: ServerProcess, png: bytes) -> None:
        self.answers: Counter[tuple[int, str]] = Counter()
        self.lost: list[str] = []
        self.enough = threading.Event()
        self._server = server
        self._png = png

    @property
    def count(self) -> int:
        return sum(self.answers.values())

    def ask_on(self) -> None:
        while not self.enough.is_set():
            try:
                response = self._server.predict(self._png, mode="stoch")
            except httpx.TransportError as error:
                self.lost.append(repr(error))
            else:
                body: dict[str, Any] = response.json()
                self.answers[response.status_code, body.get("revision", "")] += 1


@contextmanager
def load_on(server: ServerProcess, png: bytes) -> Iterator[Clients]:
    clients = Clients(server, png)
    with ThreadPoolExecutor(CLIENTS) as threads:
        asking = [threads.submit(clients.ask_on) for _ in range(CLIENTS)]
        try:
            yield clients
        finally:
            clients.enough.set()
    for each in asking:
        each.result()


def test_sigterm_under_load_loses_no_request(checkpoint_folder: Path, png: bytes) -> None:
    with serving(checkpoint_folder, change=drain_until_told) as server:
        server.wait_for("/readyz", 200)
        with load_on(server, png) as clients:
            wait_until(lambda: clients.count > 20, END_S)
            server.signal(signal.SIGTERM)
            wait_until(lambda: server.status("/readyz") == 503, END_S)
            assert server.status("/livez") == 200
            before = clients.count
            wait_until(lambda: clients.count > before + 5, END_S)
        server.signal(signal.SIGUSR1)
        status, _ = server.ended()
    assert clients.lost == []
    assert {status for status, _ in clients.answers} == {200}
    assert status == 0


def answer_on(connection: socket.socket) -> bytes:
    answer = b""
    while received := connection.recv(65536):
        answer += received
    return answer


def test_requests_accepted_before_sigterm_are_answered_though_they_wait_in_the_queue(
    checkpoint_folder: Path, png: bytes
) -> None:
    head = (
        "POST /predict?mode=stoch&samples=32 HTTP/1.1\r\nHost: test\r\nContent-Type: image/png\r\n"
        f"Content-Length: {len(png)}\r\nExpect: 100-continue\r\n\r\n"
    ).encode()
    with serving(checkpoint_folder) as server, ExitStack() as opened:
        server.wait_for("/readyz", 200)
        address = ("127.0.0.1", server.port)
        connections = [
            opened.enter_context(socket.create_connection(address, timeout=END_S))
            for _ in range(16)
        ]
        for each in connections:
            each.sendall(head)
        for each in connections:
            assert each.recv(1000).startswith(b"HTTP/1.1 100")
        for each in connections:
            each.sendall(png)
        server.signal(signal.SIGTERM)
        answers = [answer_on(each) for each in connections]
        status, _ = server.ended()
    assert [each[:12] for each in answers] == [b"HTTP/1.1 200"] * 16
    assert status == 0


def test_sighup_under_load_switches_to_the_new_revision_without_a_failed_request(
    checkpoint_copy: Path, png: bytes, make_network, make_config
) -> None:
    network = make_network(seed=7)
    successor = checkpoint_copy.with_name("successor")
    save_checkpoint(successor, network, make_config(network), "# card\n")
    before, after = stored_revision(checkpoint_copy), stored_revision(successor)
    with serving(checkpoint_copy) as server:
        server.wait_for("/readyz", 200)
        with load_on(server, png) as clients:
            wait_until(lambda: clients.answers[200, before] > 10, END_S)
            checkpoint_copy.rename(checkpoint_copy.with_name("replaced"))
            successor.rename(checkpoint_copy)
            server.signal(signal.SIGHUP)
            wait_until(lambda: clients.answers[200, after] > 10, END_S)
        assert set(clients.answers) == {(200, before), (200, after)}
        assert clients.lost == []
        (checkpoint_copy / "config.json").unlink()
        server.signal(signal.SIGHUP)
        kept = f"revision {after} is kept; {checkpoint_copy / 'config.json'}: cannot be read"
        wait_until(lambda: kept in server.log, END_S)
        assert server.predict(png).json()["revision"] == after
        server.signal(signal.SIGTERM)
        status, _ = server.ended()
    assert status == 0


def test_a_second_signal_ends_the_process_at_once(checkpoint_folder: Path) -> None:
    with serving(checkpoint_folder, change=partial(set_life, drain_s=DRAIN_S)) as server:
        server.wait_for("/readyz", 200)
        server.signal(signal.SIGTERM)
        server.wait_for("/readyz", 503)
        server.signal(signal.SIGINT)
        status, _ = server.ended()
    assert status == 128 + signal.SIGINT


def test_a_server_that_does_not_come_to_its_end_is_cut_off_with_status_1(
    checkpoint_folder: Path,
) -> None:
    with serving(checkpoint_folder, change=never_end) as server:
        wait_until(lambda: "entered" in server.log, START_S)
        server.signal(signal.SIGTERM)
        status, log = server.ended()
    assert status == 1
    assert log.endswith("eulerlora: the work under way did not end in time\n")

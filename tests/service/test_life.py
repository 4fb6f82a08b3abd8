"""A real process's life: probes while it loads, signals, reloads under load, failing checks."""

import json
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from eulerlora.checkpoint import save_checkpoint, stored_revision
from tests.server_process import END_S, MAIN, ServerProcess, serving, wait_until

STUCK = f"""
import threading
from service import commands

def stuck(*_, **__):
    print("loading", flush=True)
    threading.Event().wait()

commands.load_checked = stuck
{MAIN}
"""

IMPATIENT = """
from functools import partial
from service import commands

commands.LifeSettings = partial(commands.LifeSettings, probe_interval_s=0.2)
"""

BREAKS = f"""
{IMPATIENT}
import torch
from service import supervisor

fault_of = supervisor.fault_of

async def break_and_ask(checked, *arguments):
    if break_and_ask.asked:
        with torch.no_grad():
            checked.model.network.heads.bias[:, 0] += 5
    break_and_ask.asked = True
    return await fault_of(checked, *arguments)

break_and_ask.asked = False
supervisor.fault_of = break_and_ask
{MAIN}
"""

DRAINS = f"""
from functools import partial
from service import commands

commands.LifeSettings = partial(commands.LifeSettings, drain_s=3)
{MAIN}
"""

CLIENTS = 4


@pytest.fixture
def loading(checkpoint_folder: Path) -> Iterator[ServerProcess]:
    """A server whose model never comes."""
    with serving(checkpoint_folder, program=STUCK) as server:
        assert server.process.stdout is not None
        assert server.process.stdout.readline() == "loading\n"
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


def test_a_model_that_gives_a_wrong_known_answer_is_not_served(checkpoint_copy: Path) -> None:
    file = checkpoint_copy / "known_answer.json"
    fields = json.loads(file.read_text())
    fields["answers"][1]["probabilities"].reverse()
    file.write_text(json.dumps(fields))
    with serving(checkpoint_copy) as server:
        status, log = server.ended()
    assert status == 1
    assert f"eulerlora: {file}: the known answer is wrong: mode stoch gave" in log


def test_a_model_that_breaks_while_it_serves_ends_the_process_with_status_1(
    checkpoint_folder: Path,
) -> None:
    with serving(checkpoint_folder, program=BREAKS) as server:
        status, log = server.ended()
    assert status == 1
    assert "serving tiny" in log
    (line,) = (line for line in log.splitlines() if line.startswith("eulerlora: "))
    assert "model tiny: the known answer is wrong: mode det gave" in line


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
    with serving(checkpoint_folder, program=DRAINS) as server:
        server.wait_for("/readyz", 200)
        with load_on(server, png) as clients:
            wait_until(lambda: clients.count > 20, END_S)
            server.signal(signal.SIGTERM)
            wait_until(lambda: server.status("/readyz") == 503, END_S)
            assert server.status("/livez") == 200
            before = clients.count
            wait_until(lambda: clients.count > before + 5, END_S)
        status, _ = server.ended()
    assert clients.lost == []
    assert {status for status, _ in clients.answers} == {200}
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
        assert server.process.stderr is not None
        line = next(line for line in server.process.stderr if "is kept" in line)
        assert f"revision {after} is kept; {checkpoint_copy / 'config.json'}: cannot" in line
        assert server.predict(png).json()["revision"] == after
        server.signal(signal.SIGTERM)
        status, _ = server.ended()
    assert status == 0


def test_a_second_signal_ends_the_process_at_once(checkpoint_folder: Path) -> None:
    with serving(checkpoint_folder, program=DRAINS.replace("drain_s=3", "drain_s=1000")) as server:
        server.wait_for("/readyz", 200)
        server.signal(signal.SIGTERM)
        server.wait_for("/readyz", 503)
        server.signal(signal.SIGINT)
        status, _ = server.ended()
    assert status == 128 + signal.SIGINT

"""A real server process: start, signals, reloads under load, and failures."""

import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx
import pytest
import torch

from eulerlora.checkpoint.files import save_checkpoint, stored_revision
from service import process
from service.decoding.pool import DecoderPool
from service.inference import engine
from service.lifecycle.loading import CheckedModel, CheckpointSource
from tests.server_process import END_S, START_S, ServerProcess, serving, wait_until
from training.calibration.calibrate import calibrate_checkpoint
from training.data.images import ImageParts, LabelledImage

CLIENTS = 4
DRAIN_S = 10_000


def never_load() -> None:
    """Makes the server wait for its model forever."""

    def block(*_: object, **__: object) -> None:
        print("loading", file=sys.stderr, flush=True)
        threading.Event().wait()

    CheckpointSource.load = block  # type: ignore[assignment,method-assign]


def set_life(**settings: float) -> None:
    """Changes settings of the group LIFE in the server."""
    for name, value in settings.items():
        os.environ[f"EULERLORA_SERVE_LIFE__{name.upper()}"] = str(value)


def drain_until_sigusr1() -> None:
    """Makes the server drain until it gets SIGUSR1."""
    signalled = threading.Event()
    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() + (DRAIN_S if signalled.is_set() else 0)
    )
    signal.signal(signal.SIGUSR1, lambda *_: signalled.set())
    process.time = clock  # type: ignore[assignment]
    set_life(drain_s=DRAIN_S, grace_s=2 * DRAIN_S)


def lose_the_device() -> None:
    """Makes the server's device fail after the warm-up."""
    warm_up = CheckedModel.warm_up

    def fail(*_: Any) -> NoReturn:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    async def warm_up_and_fail(*arguments: Any) -> None:
        await warm_up(*arguments)
        engine.predict_images = fail

    CheckedModel.warm_up = warm_up_and_fail  # type: ignore[method-assign]


def never_end() -> None:
    """Makes the shutdown of the server's application hang."""

    DecoderPool.close = lambda _: threading.Event().wait()  # type: ignore[method-assign]
    for name in ("DEADLINE_S", "BODIES__UPLOAD_TIMEOUT_S"):
        os.environ["EULERLORA_SERVE_" + name] = "0.1"
    set_life(grace_s=6)


def unread_stderr() -> None:
    """Makes stderr of the server a pipe that is full and never read."""
    _, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    os.dup2(writer, 2)


def closed_stderr() -> None:
    """Closes stderr of the server, as `2>&-`."""
    os.close(2)
    sys.stderr = None  # type: ignore[assignment]


@pytest.mark.parametrize("change", [unread_stderr, closed_stderr])
def test_a_log_that_cannot_be_written_does_not_stop_the_service(
    checkpoint_folder: Path, png: bytes, change: Callable[[], None]
) -> None:
    with serving(checkpoint_folder, change=change) as server:
        server.wait_for("/readyz", 200)
        for _ in range(3):
            assert server.predict(png).status_code == 200
        if change is not unread_stderr:  # whose lines wait
            lines = server.get("/metrics").text.splitlines()
            counted = [
                line for line in lines if line.startswith("eulerlora_log_lines_dropped_total")
            ]
            assert [float(line.split()[1]) > 3 for line in counted] == [True]
        server.signal(signal.SIGTERM)
        status, _ = server.wait_for_exit()
    assert status == 0


def test_a_server_that_is_loading_is_alive_but_not_ready_and_stops_cleanly(
    checkpoint_folder: Path, png: bytes
) -> None:
    with serving(checkpoint_folder, change=never_load) as server:
        wait_until(lambda: "loading" in server.log, START_S)
        server.wait_for("/livez", 200)
        assert server.status("/readyz") == 503
        refused = server.predict(png)
        assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
        assert int(refused.headers["Retry-After"]) >= 1
        assert server.get("/").json()["code"] == "not_ready"
        page = httpx.get(server.url, headers={"Accept": "text/html,*/*;q=0.8"}, timeout=END_S)
        assert (page.status_code, page.headers["Content-Type"]) == (503, "text/html; charset=utf-8")
        assert "the models are being loaded" in page.text and 'content="5"' in page.text
        server.signal(signal.SIGTERM)
        status, log = server.wait_for_exit()
    assert status == 0
    assert "Traceback" not in log


def test_a_lost_device_is_a_503_and_ends_the_process_with_status_1(
    checkpoint_folder: Path, png: bytes
) -> None:
    with serving(checkpoint_folder, change=lose_the_device) as server:
        server.wait_for("/readyz", 200)
        refused = server.predict(png)
        status, log = server.wait_for_exit()
    assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
    assert "CUDA" not in refused.text
    assert status == 1
    assert "eulerlora: CUDA error: an illegal memory access was encountered\n" in log


class LoadGenerator:
    """Clients that send one request after another, each on a new connection.

    responses: the number of responses by (status, revision). lost: the errors of requests without
    a response.
    """

    def __init__(self, server: ServerProcess, png: bytes) -> None:
        self.responses: Counter[tuple[int, str]] = Counter()
        self.lost: list[str] = []
        self.stop = threading.Event()
        self._server = server
        self._png = png

    @property
    def count(self) -> int:
        return sum(self.responses.values())

    def run_client(self) -> None:
        while not self.stop.is_set():
            try:
                response = self._server.predict(self._png, mode="stoch")
            except httpx.TransportError as error:
                self.lost.append(repr(error))
            else:
                body: dict[str, Any] = response.json()
                self.responses[response.status_code, body.get("revision", "")] += 1


@contextmanager
def load_on(server: ServerProcess, png: bytes) -> Iterator[LoadGenerator]:
    """Keeps `CLIENTS` clients busy while the context is open."""
    load = LoadGenerator(server, png)
    with ThreadPoolExecutor(CLIENTS) as threads:
        clients = [threads.submit(load.run_client) for _ in range(CLIENTS)]
        try:
            yield load
        finally:
            load.stop.set()
    for client in clients:
        client.result()


def test_sigterm_under_load_loses_no_request(checkpoint_folder: Path, png: bytes) -> None:
    with serving(checkpoint_folder, change=drain_until_sigusr1) as server:
        server.wait_for("/readyz", 200)
        with load_on(server, png) as load:
            wait_until(lambda: load.count > 10, END_S)
            server.signal(signal.SIGTERM)
            wait_until(lambda: server.status("/readyz") == 503, END_S)
            assert server.status("/livez") == 200
            before = load.count
            wait_until(lambda: load.count > before + 5, END_S)
        server.signal(signal.SIGUSR1)
        status, _ = server.wait_for_exit()
    assert load.lost == []
    assert {status for status, _ in load.responses} == {200}
    assert status == 0


def test_sighup_under_load_serves_the_new_revision_without_a_failed_request(
    checkpoint_copy: Path, png: bytes, make_network, make_config
) -> None:
    network = make_network(seed=7)
    successor = checkpoint_copy.with_name("successor")
    save_checkpoint(successor, network, make_config(network), "# card\n")
    before, after = stored_revision(checkpoint_copy), stored_revision(successor)
    with serving(checkpoint_copy) as server:
        server.wait_for("/readyz", 200)
        with load_on(server, png) as load:
            wait_until(lambda: load.responses[200, before] > 5, END_S)
            checkpoint_copy.rename(checkpoint_copy.with_name("replaced"))
            successor.rename(checkpoint_copy)
            server.signal(signal.SIGHUP)
            wait_until(lambda: load.responses[200, after] > 5, END_S)
        assert set(load.responses) == {(200, before), (200, after)}
        assert load.lost == []


def test_sighup_follows_a_link_to_the_newest_checkpoint(
    checkpoint_folder: Path, photo, png: bytes, tmp_path: Path, make_network, make_config
) -> None:
    first, second, other = (tmp_path / name for name in ("1", "2", "other"))
    shutil.copytree(checkpoint_folder, first)
    photo.save(tmp_path / "photo.png")
    images = [LabelledImage("photo.png", tmp_path / "photo.png", label) for label in range(3)]
    parts = ImageParts("photos", (), {"train": images, "test": images})
    calibrate_checkpoint(first, second, parts, torch.device("cpu"), samples=[4])
    network = make_network(seed=7)
    save_checkpoint(other, network, make_config(network, name="other"), "# card\n")
    before, after = stored_revision(first), stored_revision(second)
    link = tmp_path / "current"
    link.symlink_to("1")
    with serving(link) as server:
        server.wait_for("/readyz", 200)
        assert server.predict(png).json()["revision"] == before
        for target in ("nothing", "other"):
            switch(link, target)
            refusals = server.log.count(f"still serving revision {before}")
            server.signal(signal.SIGHUP)
            wait_until(
                lambda count=refusals: server.log.count(f"still serving revision {before}") > count,
                END_S,
            )
            assert "eulerlora_last_reload_successful 0.0" in server.get("/metrics").text
            assert server.predict(png).json()["revision"] == before
        switch(link, "2")
        server.signal(signal.SIGHUP)
        wait_until(lambda: server.predict(png).json()["revision"] == after, END_S)
        metric = "eulerlora_last_reload_successful 1.0"
        wait_until(lambda: metric in server.get("/metrics").text, END_S)
        assert stored_revision(first) == before


def switch(link: Path, target: str) -> None:
    """As `ln -sfn`, in one step."""
    new = link.with_name("next link")
    new.symlink_to(target)
    new.replace(link)


def drain_while_loading() -> None:
    """Makes the server load and drain forever."""
    never_load()
    set_life(drain_s=DRAIN_S, grace_s=2 * DRAIN_S)


def test_a_second_signal_ends_the_process_at_once(checkpoint_folder: Path) -> None:
    with serving(checkpoint_folder, change=drain_while_loading) as server:
        wait_until(lambda: "loading" in server.log, START_S)
        server.wait_for("/livez", 200)
        server.signal(signal.SIGTERM)
        wait_until(lambda: "the service is stopping" in server.get("/readyz").text, END_S)
        server.signal(signal.SIGINT)
        status, _ = server.wait_for_exit()
    assert status == 128 + signal.SIGINT


def test_a_shutdown_that_hangs_is_forced_with_status_1(checkpoint_folder: Path) -> None:
    with serving(checkpoint_folder, change=never_end) as server:
        server.wait_for("/readyz", 200)
        server.signal(signal.SIGTERM)
        status, log = server.wait_for_exit()
    assert status == 1
    assert log.endswith("eulerlora: the shutdown did not complete in time\n")

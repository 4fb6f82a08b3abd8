"""`eulerlora serve`: what starts, what refuses to start, and how it ends."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from eulerlora.checkpoint import save_checkpoint
from service import commands
from tests.program import run

PROGRAM = (sys.executable, "-c", "from eulerlora.command_line import main; main()")
START_S = 120  # torch alone takes many seconds to import on a busy machine
END_S = 30


@contextmanager
def served(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`eulerlora serve` in a process of its own, which does not outlive the block."""
    process = subprocess.Popen(
        [*PROGRAM, "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class Life:
    """A server that got SIGTERM while it read a request's body.

    before, during: the answers to a request before the signal, and to the one under way.
    status: the process's exit status. log: what it wrote to stderr.
    """

    before: dict[str, object]
    during: bytes
    status: int
    log: str


@pytest.fixture(scope="module")
def life(checkpoint_folder: Path, free_port: int, png: bytes) -> Life:
    """One server's life from its start to SIGTERM."""
    address = ("127.0.0.1", free_port)
    head = (
        "POST /predict?mode=stoch HTTP/1.1\r\nHost: test\r\nContent-Type: image/png\r\n"
        f"Content-Length: {len(png)}\r\nExpect: 100-continue\r\n\r\n"
    ).encode()
    with served(str(checkpoint_folder), "--port", str(free_port)) as process:
        wait_until(lambda: accepts(free_port) or process.poll() is not None, START_S)
        assert process.poll() is None, process.communicate()
        before = httpx.post(
            f"http://127.0.0.1:{free_port}/predict?mode=stoch",
            content=png,
            headers={"Content-Type": "image/png"},
        ).json()
        with socket.create_connection(address, timeout=END_S) as connection:
            connection.sendall(head)
            assert connection.recv(1000).startswith(b"HTTP/1.1 100")  # the body is being read
            connection.sendall(png[:100])
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: not accepts(free_port), END_S)
            connection.sendall(png[100:])
            during = b""
            while received := connection.recv(65536):
                during += received
        _, log = process.communicate(timeout=END_S)
        return Life(before, during, process.returncode, log)


def test_a_served_checkpoint_answers_over_a_socket_as_the_library_does(life, model, photo) -> None:
    wanted = model.predict([photo], "stoch").probabilities[0].tolist()
    assert list(life.before["probabilities"].values()) == pytest.approx(wanted, abs=1e-6)


def test_a_request_under_way_at_sigterm_is_answered(life) -> None:
    head, _, body = life.during.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    answer = httpx.Response(200, content=body).json()
    assert answer["probabilities"] == life.before["probabilities"]


def test_sigterm_ends_the_server_with_status_0(life) -> None:
    assert life.status == 0


def test_the_server_says_what_it_serves_and_where(life, free_port) -> None:
    assert life.log.startswith(f"serving tiny on http://127.0.0.1:{free_port}\n")
    assert "Traceback" not in life.log


def run_apart(*arguments: str) -> subprocess.CompletedProcess[str]:
    with served(*arguments) as process:
        out, err = process.communicate(timeout=START_S)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def test_a_corrupt_checkpoint_ends_the_process_with_one_line_and_status_1(checkpoint_copy) -> None:
    truncate(checkpoint_copy / "adapters.safetensors")
    ended = run_apart(str(checkpoint_copy))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith(f"eulerlora: {checkpoint_copy / 'adapters.safetensors'}: ")


def test_a_port_in_use_is_told_in_one_line_and_status_1(checkpoint_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run_apart(str(checkpoint_folder), "--port", str(port))
    assert (ended.returncode, ended.stdout) == (1, "")
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("serving ")]
    assert len(lines) == 1
    assert lines[0].startswith("eulerlora: ")
    assert "in use" in lines[0]


@pytest.fixture
def refusal(monkeypatch) -> Callable[..., tuple[int, str]]:
    """(*arguments of serve) -> exit status and the one line on stderr; in this process."""
    monkeypatch.setattr(commands, "create_app", lambda *_: pytest.fail("it was going to serve"))

    def start(*arguments: str | Path) -> tuple[int, str]:
        done = run("serve", *arguments)
        assert done.out == ""
        assert done.err.startswith("eulerlora: ")
        assert done.err.endswith("\n")
        assert done.err.count("\n") == 1
        return done.status, done.err

    return start


def rewrite(file: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def poison(tensors: dict[str, torch.Tensor]) -> None:
    tensors["heads.bias"][0, 1] = torch.nan


def reshape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["heads.bias"] = torch.zeros(2, 4)


def forget(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["heads.bias"]


DAMAGES = {
    "truncated adapters": ("adapters.safetensors", "not a readable", truncate),
    "truncated backbone": ("backbone.safetensors", "not a readable", truncate),
    "no adapters": ("adapters.safetensors", "not a readable", Path.unlink),
    "a pickle in disguise": (
        "adapters.safetensors",
        "not a readable",
        lambda file: torch.save({"heads.bias": torch.zeros(2, 3)}, file),
    ),
    "not finite": (
        "adapters.safetensors",
        "heads.bias has NaN",
        lambda file: rewrite(file, poison),
    ),
    "wrong shape": (
        "adapters.safetensors",
        "heads.bias has shape [2, 4], wanted [2, 3]",
        lambda file: rewrite(file, reshape),
    ),
    "missing tensor": (
        "adapters.safetensors",
        "heads.bias is missing",
        lambda file: rewrite(file, forget),
    ),
    "broken config": ("config.json", "", truncate),
    "no config": ("config.json", "cannot be read", Path.unlink),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_with_its_file_and_the_reason(
    checkpoint_copy: Path, refusal, damage
) -> None:
    name, reason, apply = DAMAGES[damage]
    file = checkpoint_copy / name
    apply(file)
    started = time.monotonic()
    status, line = refusal(checkpoint_copy)
    assert time.monotonic() - started < 5
    assert status == 1
    assert f"{file}: " in line
    assert reason in line


def test_a_checkpoint_made_for_another_backbone_is_refused(
    checkpoint_copy: Path, tmp_path: Path, make_network, make_config, refusal
) -> None:
    other = make_network(seed=9)
    save_checkpoint(tmp_path / "other", other, make_config(other), "# other\n")
    file = checkpoint_copy / "backbone.safetensors"
    shutil.copy(tmp_path / "other" / file.name, file)
    status, line = refusal(checkpoint_copy)
    assert status == 1
    assert f"{file}: the weights' SHA-256 is" in line


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path, refusal) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        status, line = refusal(folder)
        assert (status, str(folder) in line) == (1, True)


def test_one_bad_checkpoint_among_good_ones_is_refused(
    checkpoint_folder: Path, checkpoint_copy: Path, refusal
) -> None:
    truncate(checkpoint_copy / "adapters.safetensors")
    status, line = refusal(checkpoint_folder, checkpoint_copy)
    assert (status, str(checkpoint_copy) in line) == (1, True)


def test_the_same_name_twice_is_refused(checkpoint_folder: Path, refusal) -> None:
    status, line = refusal(checkpoint_folder, checkpoint_folder)
    assert (status, "tiny" in line) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [("--nope",), ("--port",), ("--port", "http"), ("--port", "65536"), ("--port", "-1")],
)
def test_wrong_usage_is_told_in_one_line_and_status_2(refusal, arguments) -> None:
    status, line = refusal(*arguments)
    assert status == 2
    assert arguments[0] in line


def test_an_unknown_device_is_told_in_one_line(checkpoint_folder: Path, refusal) -> None:
    status, line = refusal(checkpoint_folder, "--device", "abacus")
    assert status in (1, 2)
    assert "abacus" in line

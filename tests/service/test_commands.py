"""`eulerlora serve`: what starts, what refuses to start, and how it ends."""

import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.damaged_checkpoints import DAMAGES, edited
from tests.program import run
from tests.server_process import END_S, serving, wait_until

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=END_S).close()
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
    port: int


@pytest.fixture(scope="module")
def life(checkpoint_folder: Path, png: bytes) -> Life:
    """One server's life from its start to SIGTERM."""
    head = (
        "POST /predict?mode=stoch HTTP/1.1\r\nHost: test\r\nContent-Type: image/png\r\n"
        f"Content-Length: {len(png)}\r\nExpect: 100-continue\r\n\r\n"
    ).encode()
    with serving(checkpoint_folder) as server:
        server.wait_for("/readyz", 200)
        before = server.predict(png, mode="stoch").json()
        address = ("127.0.0.1", server.port)
        with socket.create_connection(address, timeout=END_S) as connection:
            connection.sendall(head)
            assert connection.recv(1000).startswith(b"HTTP/1.1 100")  # the body is being read
            connection.sendall(png[:100])
            server.signal(signal.SIGTERM)
            wait_until(lambda: not accepts(server.port), END_S)
            connection.sendall(png[100:])
            during = b""
            while received := connection.recv(65536):
                during += received
        status, log = server.ended()
        return Life(before, during, status, log, server.port)


def test_a_served_checkpoint_answers_over_a_socket_as_the_library_does(life, model, photo) -> None:
    wanted = model.predict([photo], "stoch").probabilities[0].tolist()
    assert list(life.before["probabilities"].values()) == pytest.approx(wanted, abs=1e-6)


def test_a_request_under_way_at_sigterm_is_answered(life) -> None:
    head, _, body = life.during.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in head.lower()
    answer = httpx.Response(200, content=body).json()
    assert answer["probabilities"] == life.before["probabilities"]


def test_sigterm_ends_the_server_with_status_0(life) -> None:
    assert life.status == 0


def test_the_server_says_what_it_serves_and_where(life) -> None:
    assert f"serving tiny on http://127.0.0.1:{life.port}\n" in life.log
    assert "Traceback" not in life.log


def complaints(log: str) -> list[str]:
    """The lines in which the program itself says what is wrong."""
    assert "Traceback" not in log
    return [line for line in log.splitlines() if line.startswith("eulerlora: ")]


def test_a_damaged_checkpoint_ends_the_process_with_one_line_and_status_1(checkpoint_copy) -> None:
    file, _, apply = DAMAGES["adapters cut off"]
    apply(checkpoint_copy)
    with serving(checkpoint_copy) as server:
        status, log = server.ended()
    assert status == 1
    (line,) = complaints(log)
    assert line.startswith(f"eulerlora: {checkpoint_copy / file}: ")


@pytest.fixture
def refusal() -> Iterator[Callable[..., tuple[int, str]]]:
    """(*arguments of serve) -> exit status and the one complaint; in this process."""

    def start(*arguments: str | Path) -> tuple[int, str]:
        done = run("serve", *arguments)
        assert done.out == ""
        (line,) = complaints(done.err)
        assert "serving" not in done.err
        return done.status, line

    handlers = {each: signal.getsignal(each) for each in HANDLED}
    yield start
    for each, handler in handlers.items():
        signal.signal(each, handler)


def test_a_port_in_use_is_told_in_one_line_and_status_1(checkpoint_folder: Path, refusal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, line = refusal(checkpoint_folder, "--port", str(taken.getsockname()[1]))
    assert status == 1
    assert "in use" in line


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_with_its_file_and_the_reason(
    checkpoint_copy: Path, refusal, damage
) -> None:
    file, reason, apply = DAMAGES[damage]
    apply(checkpoint_copy)
    status, line = refusal(checkpoint_copy, "--port", "0")
    assert status == 1
    assert f"{checkpoint_copy / file}: " in line
    assert reason in line


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path, refusal) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        status, line = refusal(folder)
        assert (status, str(folder) in line) == (1, True)


def test_one_bad_checkpoint_among_good_ones_is_refused(
    checkpoint_folder: Path, checkpoint_copy: Path, refusal
) -> None:
    edited("config.json", lambda fields: fields.update(name="other"))(checkpoint_copy)
    DAMAGES["backbone cut off"].apply(checkpoint_copy)
    status, line = refusal(checkpoint_folder, checkpoint_copy, "--port", "0")
    assert (status, str(checkpoint_copy) in line) == (1, True)


def test_a_policy_that_cannot_be_used_is_refused_with_its_file(
    checkpoint_folder: Path, tmp_path: Path, refusal
) -> None:
    policy = tmp_path / "policy.toml"
    for reason in ("cannot be read", "format_version"):
        status, line = refusal(checkpoint_folder, "--port", "0", "--policy", policy)
        assert (status, f"{policy}: " in line, reason in line) == (1, True, True)
        policy.write_text("version = 1\n")


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

"""`eulerlora serve`: the start, invalid arguments, exposed addresses, and the exit status."""

import asyncio
import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest
import torch
from PIL import Image
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from eulerlora import EulerLoRA
from eulerlora_contract.errors import SettingsError
from service.decoding.fork_server import FORK_SERVER
from service.http.protocol import protocol_of
from service.http.server import Address, server_config
from service.inference.engine import ServedModel
from service.process import described, effective_settings
from tests.conftest import needs_openvino
from tests.damaged_checkpoints import DAMAGES, edited
from tests.program import run
from tests.server_process import END_S, serving, wait_until
from tests.service.conftest import encoded
from tests.service.real_server import exchange
from tests.service.settings import settings_of
from tests.signing_keys import write_keys

CLIENTS = 16
SENDERS, PHOTOGRAPHS = 8, 4
MANY_ANSWERS = 150
"""Of one client, which others need not wait for; each takes less than a tenth of a photograph."""
PR_GET_DUMPABLE = 3
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def jpeg_request(image: Image.Image) -> bytes:
    content = encoded(image, "JPEG")
    head = (
        "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=END_S).close()
    except OSError:
        return False
    return True


def read_all(connection: socket.socket) -> bytes:
    content = b""
    while received := connection.recv(65536):
        content += received
    return content


def test_requests_whose_body_is_read_at_sigterm_are_answered_before_a_clean_exit(
    checkpoint_folder: Path, png: bytes
) -> None:
    start = (
        "POST /predict?mode=stoch HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        f"Content-Length: {len(png)}\r\nExpect: 100-continue\r\n\r\n"
    ).encode()
    with serving(checkpoint_folder) as server, ExitStack() as stack:
        server.wait_for("/readyz", 200)
        first = server.predict(png, mode="stoch").json()
        address = ("127.0.0.1", server.port)
        connections = [
            stack.enter_context(socket.create_connection(address, timeout=END_S))
            for _ in range(CLIENTS)
        ]
        for connection in connections:
            connection.sendall(start)
            assert connection.recv(1000).startswith(b"HTTP/1.1 100")  # it waits for the body
            connection.sendall(png[:100])
        server.signal(signal.SIGTERM)
        wait_until(lambda: not accepts(server.port), END_S)
        for connection in connections:
            connection.sendall(png[100:])
        interrupted = [read_all(connection) for connection in connections]
        status, log = server.wait_for_exit()
    assert status == 0
    messages = [json.loads(line)["message"] for line in log.splitlines()]  # a collector's format
    assert f"serving tiny on {server.url}" in messages
    for response in interrupted:
        head, _, body = response.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in head.lower()
        expected = pytest.approx(first["probabilities"], abs=1e-6)
        assert json.loads(body)["probabilities"] == expected


def test_a_large_photograph_is_answered_while_another_client_keeps_sending(
    checkpoint_folder: Path,
) -> None:
    photograph = jpeg_request(Image.linear_gradient("L").resize((8000, 6000)))
    picture = jpeg_request(Image.linear_gradient("L").resize((600, 450)))
    others: list[int] = []
    with serving(checkpoint_folder) as server, ThreadPoolExecutor(SENDERS) as threads:
        server.wait_for("/readyz", 200)

        def keep_sending() -> None:
            while not done.is_set() and len(others) < MANY_ANSWERS:
                others.append(exchange(server.port, picture, "127.0.0.2").status)

        done = Event()
        senders = [threads.submit(keep_sending) for _ in range(SENDERS)]
        photographs = [exchange(server.port, photograph).status for _ in range(PHOTOGRAPHS)]
        done.set()
        for sender in senders:
            sender.result()
    assert photographs == [200] * PHOTOGRAPHS
    assert set(others) == {200}
    assert len(others) < MANY_ANSWERS


@needs_openvino
def test_the_chosen_runtime_runs_the_network_and_is_named(
    checkpoint_folder: Path, png: bytes
) -> None:
    with serving(checkpoint_folder, "--runtime", "openvino") as server:
        server.wait_for("/readyz", 200)
        answer = server.predict(png, mode="stoch").json()
        (listed,) = server.get("/models").json()["models"]
        metrics = server.get("/metrics").text
    (line,) = (line for line in metrics.splitlines() if line.startswith("eulerlora_model_info{"))
    assert answer["runtime"] == listed["runtime"] == "openvino"
    assert 'runtime="openvino"' in line
    model = EulerLoRA.load(checkpoint_folder, "cpu")
    assert model.revision == answer["revision"] == listed["revision"]


@needs_openvino
def test_by_default_the_start_measures_which_runtime_is_faster(
    checkpoint_folder: Path, png: bytes
) -> None:
    with serving(checkpoint_folder, defaults=()) as server:
        server.wait_for("/readyz", 200)
        details = server.get("/models/tiny").json()
        answer = server.predict(png).json()
    assert "ms of CPU by openvino and" in details["runtime_reason"]
    assert answer.get("runtime", "torch") == details["runtime"]


def hide_openvino() -> None:
    sys.modules["openvino"] = None  # type: ignore[assignment]


def refuse_to_trace() -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("not\nsupported")

    torch.jit.trace = fail
    os.environ["EULERLORA_CACHE"] = os.devnull  # where no graph can be kept


@needs_openvino
@pytest.mark.parametrize(
    ("change", "reason"),
    [(hide_openvino, "expected the package openvino"), (refuse_to_trace, "not supported")],
)
def test_where_openvino_cannot_run_the_network_torch_serves_and_one_line_of_the_log_says_why(
    change: Callable[[], None], reason: str, checkpoint_folder: Path, png: bytes
) -> None:
    with serving(checkpoint_folder, "--runtime", "auto", change=change) as server:
        server.wait_for("/readyz", 200)
        answer = server.predict(png).json()
        log = server.log
    messages = [json.loads(line)["message"] for line in log.splitlines()]
    (line,) = (message for message in messages if "runtime" in message)
    assert line.startswith("model tiny: runtime torch: ")
    assert reason in line
    assert "runtime" not in answer


def error_lines(log: str) -> list[str]:
    assert "Traceback" not in log
    return [line for line in log.splitlines() if line.startswith("eulerlora: ")]


def bad_among_good(good: Path, copy: Path) -> tuple[Path, ...]:
    edited("config.json", lambda fields: fields.update(name="other"))(copy)
    DAMAGES["backbone cut off"].apply(copy)
    return good, copy


@pytest.mark.parametrize(
    ("folders", "named"),
    [
        (bad_among_good, "copy"),
        (lambda good, _: (good, good), "tiny"),
    ],
    ids=["damaged", "same name"],
)
def test_checkpoints_that_cannot_be_served_end_the_process_with_one_line_and_status_1(
    checkpoint_folder: Path, checkpoint_copy: Path, folders, named: str
) -> None:
    with serving(*folders(checkpoint_folder, checkpoint_copy)) as server:
        status, log = server.wait_for_exit()
    (line,) = error_lines(log)
    assert (status, named in line) == (1, True)


def test_an_unsigned_checkpoint_is_refused_if_signatures_are_required(
    checkpoint_folder: Path, tmp_path: Path
) -> None:
    keys = write_keys(tmp_path)
    with serving(checkpoint_folder, "--require-signature", keys.public) as server:
        status, log = server.wait_for_exit()
    (line,) = error_lines(log)
    assert (status, str(checkpoint_folder / "model.sig") in line) == (1, True)


@pytest.fixture
def refusal() -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs `serve` in this process: (*arguments) -> exit status and error line."""

    def start(*arguments: str | Path) -> tuple[int, str]:
        completed = run("serve", *arguments)
        assert completed.out == ""
        (line,) = error_lines(completed.err)
        assert "serving" not in completed.err
        return completed.status, line

    handlers = {number: signal.getsignal(number) for number in HANDLED}
    interval_s = sys.getswitchinterval()
    yield start
    sys.setswitchinterval(interval_s)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_service_without_its_extra_starts_no_process(
    monkeypatch: pytest.MonkeyPatch, refusal
) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setattr(FORK_SERVER, "start", lambda: pytest.fail("a process was started"))
    status, line = refusal()
    assert (status, line.endswith("pip install 'eulerlora[serve]'")) == (1, True)


def test_a_port_in_use_is_one_line_and_status_1(checkpoint_folder: Path, refusal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, line = refusal(checkpoint_folder, "--port", str(taken.getsockname()[1]))
    assert status == 1
    assert "in use" in line


@pytest.mark.parametrize("options", [(), ("--shadow",)])
def test_a_folder_that_does_not_exist_is_refused_before_the_server_starts(
    checkpoint_folder: Path, refusal, options: tuple[str, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # listening comes later
        status, line = refusal(
            checkpoint_folder, *options, "nosuch", "--port", str(taken.getsockname()[1])
        )
    assert (status, "nosuch" in line) == (1, True)


def test_a_compiled_model_has_no_shadow(checkpoint_folder: Path, refusal) -> None:
    status, line = refusal(
        checkpoint_folder, "--port", "0", "--shadow", checkpoint_folder, "--compile"
    )
    assert (status, "--shadow" in line) == (1, True)


def without_sandbox() -> None:
    """Lets the decoders run as on a kernel that restricts nothing."""
    FORK_SERVER.__init__("tests.service.decoding.unrestricted")  # type: ignore[misc]


def test_a_required_sandbox_that_is_missing_is_one_line_and_status_1(
    checkpoint_folder: Path,
) -> None:
    with serving(checkpoint_folder, "--require-sandbox", change=without_sandbox) as server:
        status, log = server.wait_for_exit()
    (line,) = error_lines(log)
    assert (status, "landlock" in line) == (1, True)


def test_other_processes_of_the_user_cannot_read_the_memory_of_the_service(refusal) -> None:
    refusal("--port", "0", "--policy", "missing")
    assert ctypes.CDLL(None).prctl(PR_GET_DUMPABLE) == 0


def test_a_pass_does_not_wait_long_for_the_lock_of_the_interpreter(
    checkpoint_folder: Path, refusal
) -> None:
    sys.setswitchinterval(0.005)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refusal(checkpoint_folder, "--port", str(taken.getsockname()[1]))
    assert sys.getswitchinterval() < 0.001


def test_an_invalid_policy_is_refused_with_its_file(
    checkpoint_folder: Path, tmp_path: Path, refusal
) -> None:
    policy = tmp_path / "policy.toml"
    for reason in ("cannot be read", "format_version"):
        status, line = refusal(checkpoint_folder, "--port", "0", "--policy", policy)
        assert (status, f"{policy}: " in line, reason in line) == (1, True, True)
        policy.write_text("version = 1\n")


def test_the_command_line_overrides_the_settings_of_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("EULERLORA_SERVE_LIFE__DRAIN_S", "1")
    monkeypatch.setenv("EULERLORA_SERVE_LIFE__GRACE_S", "70")
    assert effective_settings().life.drain_s == 1
    life = effective_settings(2.5).life
    assert (life.drain_s, life.grace_s) == (2.5, 70)
    with pytest.raises(SettingsError, match=r"drain_s .*=75, got 70$"):
        effective_settings(30)


@pytest.mark.parametrize(
    ("licence", "expected"),
    [(None, "a"), ("mit", "a"), ("cc-by-nc-4.0", "a (cc-by-nc-4.0: no commercial use)"),
     ("cc-by-nc\x1b[2J", "a")],
)  # fmt: skip
def test_the_start_line_names_a_licence_that_forbids_commercial_use(
    model: EulerLoRA, licence: str | None, expected: str
) -> None:
    assert described({"a": ServedModel(model, licence=licence)}) == expected


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:80"), ("localhost", "http://localhost:80"),
     ("::1", "http://[::1]:80")],
)  # fmt: skip
def test_the_url_encloses_an_ipv6_address_in_brackets(host: str, url: str) -> None:
    assert Address(host, 80).url == url


def test_the_unspecified_ipv6_address_serves_both_families() -> None:
    try:
        listener = Address("::").listen()
    except SettingsError:
        pytest.skip("requires IPv6")
    with listener:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, listener.getsockname()[1]), timeout=END_S).close()


def test_an_invalid_host_name_is_refused_in_one_line() -> None:
    with pytest.raises(SettingsError, match=r"cannot listen on .*: invalid host name$"):
        Address("a" * 64 + ".example").listen()


LOOPBACK = ["127.0.0.1", "127.8.9.10", "localhost", "LOCALHOST", "::1", "::ffff:127.0.0.1"]
EXPOSED = ["0.0.0.0", "::", "", "192.168.1.7", "10.0.0.1", "fe80::1%eth0", "::ffff:10.0.0.1",
           "clinic.example", "localhost.example", "127.0.0.1.example", "2130706433"]  # fmt: skip


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_is_served_without_keys_under_its_own_names(host: str) -> None:
    assert Address(host).check_exposure(has_keys=False, open_to_all=False) is not None  # a warning
    assert Address(host).check_exposure(has_keys=True, open_to_all=False) is None
    names = Address(host).allowed_hosts(has_keys=False, names="")
    assert names == {"localhost", "127.0.0.1", "::1", host.lower()}
    assert Address(host).allowed_hosts(has_keys=True, names="") is None


@pytest.mark.parametrize("host", EXPOSED)
def test_other_addresses_require_keys_or_open_and_have_every_name_with_keys(host: str) -> None:
    with pytest.raises(SettingsError):
        Address(host).check_exposure(has_keys=False, open_to_all=False)
    assert Address(host).check_exposure(has_keys=False, open_to_all=True) is not None  # a warning
    assert Address(host).check_exposure(has_keys=True, open_to_all=False) is None
    names = Address(host).allowed_hosts(has_keys=False, names="")
    assert names == {"localhost", "127.0.0.1", "::1", host.lower()} - {""}
    assert Address(host).allowed_hosts(has_keys=True, names="") is None


@pytest.mark.parametrize(
    ("trusted", "peer", "client"),
    [("", "127.0.0.1", "127.0.0.1"), ("10.0.0.7", "127.0.0.1", "127.0.0.1"),
     ("", "::ffff:10.0.0.7", "10.0.0.7"), ("127.0.0.1", "127.0.0.1", "192.0.2.1"),
     ("10.0.0.0/8,::1", "10.1.2.3", "192.0.2.1"),
     ("10.0.0.0/8", "::ffff:10.1.2.3", "192.0.2.1"), ("10.0.0.0/8", "192.0.2.9", "192.0.2.9")],
)  # fmt: skip
def test_only_a_trusted_proxy_names_the_client_and_the_log_names_another_proxy_once(
    monkeypatch, caplog, trusted, peer, client
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    clients = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        clients.append(scope["client"][0])

    config = server_config(app, protocol_of(settings_of("connections")), trusted)
    config.load()
    headers = [(b"x-forwarded-for", b"203.0.113.5, 192.0.2.1")]
    scope = {"type": "http", "client": (peer, 1), "headers": headers, "raw_path": b"/", "state": {}}
    scope["path"] = "/"

    async def receive_request() -> None:
        await config.http_protocol_class(config, ServerState(), {}).app({**scope}, None, None)

    for _ in range(2):
        asyncio.run(receive_request())
    assert clients == [client, client]
    peers = [] if client == "192.0.2.1" else [client]
    assert [record.args[0] for record in caplog.records] == peers


def test_keys_together_with_open_are_refused() -> None:
    with pytest.raises(SettingsError):
        Address("127.0.0.1").check_exposure(has_keys=True, open_to_all=True)


@pytest.mark.parametrize("has_keys", [False, True])
def test_the_setting_replaces_the_names(has_keys: bool) -> None:
    names = Address("127.0.0.1").allowed_hosts(has_keys, "Clinic.example,10.0.0.7")
    assert names == {"clinic.example", "10.0.0.7"}

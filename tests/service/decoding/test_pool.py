"""Decoding in worker processes: results, problems, and the effect of a lost worker."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from eulerlora.images.preprocess import content_seed, resize
from eulerlora.settings import Preprocessing
from eulerlora_contract.problems import Problem
from service.decoding.decode import decode
from service.decoding.fork_server import ForkServer
from service.decoding.formats import Declared
from service.decoding.messages import DecodedInput, DecodeJob
from service.decoding.pool import DecoderPool
from tests.problems import raises_problem
from tests.server_process import wait_until
from tests.service.conftest import encoded
from tests.service.decoding.frames import HEADER
from tests.service.settings import settings_of

LIMITS = settings_of("images")
SIZE = 48
INPUT = Preprocessing(size=SIZE)
FAULTY_SETTINGS = settings_of("decoding", workers=2, timeout_s=6.0, cpu_s=0.2)
TIMEOUT_S = 120
UNRESTRICTED = ForkServer("tests.service.decoding.unrestricted")
ENDED = ForkServer("tests.service.decoding.unrestricted")


class FailingForks(ForkServer):
    """A fork server that raises faults first."""

    faults: Iterator[Exception] = iter(())

    def fork(self, request: bytes) -> Any:
        for fault in self.faults:
            raise fault
        return super().fork(request)


FAILING = FailingForks()
RUNNER = asyncio.Runner()  # the decoders of all tests use one event loop


@pytest.fixture(scope="module", autouse=True)
def one_loop() -> Iterator[None]:
    """Closes the event loop after the decoders."""
    yield
    RUNNER.close()


@pytest.fixture(scope="module")
def decoder() -> Iterator[DecoderPool]:
    """Two workers and a spare one."""
    decoder = DecoderPool(LIMITS, settings_of("decoding", workers=2, timeout_s=TIMEOUT_S))
    RUNNER.run(decoder.start())
    yield decoder
    decoder.close()


@pytest.fixture(scope="module")
def faulty() -> Iterator[DecoderPool]:
    """The same with a time limit of a few seconds; the digest of a job selects a fault."""
    decoder = DecoderPool(LIMITS, FAULTY_SETTINGS, forks=UNRESTRICTED)
    RUNNER.run(decoder.start())
    yield decoder
    decoder.close()


def submit(
    decoder: DecoderPool, content: bytes, sampling_digest: str = "r", **options: Any
) -> Coroutine[Any, Any, DecodedInput]:
    job = DecodeJob(content, Declared("image/png", "a.png"), INPUT, sampling_digest)
    return decoder.decode(job, **options)


def decode_with(decoder: DecoderPool, *arguments: Any, **options: Any) -> DecodedInput:
    return RUNNER.run(submit(decoder, *arguments, **options))


def pids(decoder: DecoderPool) -> set[int]:
    return {process.pid for process in decoder._workers if process.pid is not None}


def threads(pid: int) -> list[Any]:
    return psutil.Process(pid).threads()


def idle(decoder: DecoderPool) -> int:
    """The number of workers that wait for an image."""
    return sum(process.is_usable for process in decoder._idle)


def idle_pids(decoder: DecoderPool) -> set[int]:
    """Waits until all workers are idle, and returns their pids."""

    async def story() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while idle(decoder) < 3:
                await asyncio.sleep(0.01)

    RUNNER.run(story())
    return pids(decoder)


def wait_for_replacements(decoder: DecoderPool, before: set[int], count: int = 1) -> None:
    """Waits until `count` workers have been replaced."""

    async def story() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while len(pids(decoder) - before) < count or idle(decoder) < len(before):
                await asyncio.sleep(0.01)

    RUNNER.run(story())
    assert len(before & pids(decoder)) == len(before) - count


def test_a_worker_gives_the_same_result_as_this_process(decoder, png) -> None:
    image = decode(png, LIMITS, Declared("image/png"))
    decoded = decode_with(decoder, png)
    assert torch.equal(torch.from_numpy(decoded.pixels), resize(image.pixels, SIZE))
    assert decoded.content_seed == content_seed(image.pixels, "r")
    assert decoded.warnings == ()
    assert decoded.decode_s > 0
    assert decode_with(decoder, png, "another").content_seed != decoded.content_seed


def test_decoders_are_in_the_session_of_the_service(decoder) -> None:
    # The kernel may give every session an equal part of the processors.
    assert {os.getsid(pid) for pid in pids(decoder)} == {os.getsid(0)}


def test_a_hanging_decoder_fails_one_request(faulty, png) -> None:
    before = idle_pids(faulty)
    with raises_problem("not_ready", match="did not answer in time"):
        decode_with(faulty, png, "hang")
    assert decode_with(faulty, png).pixels.shape == (3, SIZE, SIZE)
    wait_for_replacements(faulty, before)


def test_a_dying_decoder_fails_one_request_and_no_other_in_flight(faulty, png) -> None:
    async def both() -> list[DecodedInput | BaseException]:
        return await asyncio.gather(
            submit(faulty, png, "slow"), submit(faulty, png, "SIGSEGV"), return_exceptions=True
        )

    unharmed, lost = RUNNER.run(both())
    assert isinstance(unharmed, DecodedInput)
    assert isinstance(lost, Problem) and lost.code == "unusable_image"
    assert decode_with(faulty, png).warnings == ()


@pytest.fixture
def fault_flag(tmp_path: Path) -> str:
    """A file that a decoder deletes when it fails."""
    (tmp_path / "flag").touch()
    return str(tmp_path / "flag")


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSEGV", "SIGSTOP"])
def test_the_image_of_a_lost_decoder_is_decoded_in_another_one(
    faulty, png, fault_flag, fault
) -> None:
    used: list[float] = []
    before = idle_pids(faulty)
    decode_with(faulty, png, f"{fault}:{fault_flag}", on_cpu_s=used.append)
    assert not Path(fault_flag).exists()
    assert len(used) == 2
    wait_for_replacements(faulty, before)


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSTOP"])
def test_a_decoder_that_is_killed_or_stopped_twice_is_not_blamed_on_the_image(
    faulty, png, fault
) -> None:
    before = idle_pids(faulty)
    with raises_problem("not_ready", match="was stopped while it decoded"):
        decode_with(faulty, png, fault)
    wait_for_replacements(faulty, before, count=2)


def test_an_image_above_its_cpu_time_is_refused_and_charged(faulty, png) -> None:
    used: list[float] = []
    before = idle_pids(faulty)
    with raises_problem("unusable_image", match="too much CPU time"):
        decode_with(faulty, png, "spin", on_cpu_s=used.append)
    budget_s = FAULTY_SETTINGS.cpu_budget_s(len(png))
    # On a busy machine the first decoder may reach its wall time before, and is then stopped.
    assert len(used) in {1, 2}
    assert used == pytest.approx([budget_s] * len(used), rel=0.5)
    wait_for_replacements(faulty, before, count=len(used))


def test_the_cpu_time_of_a_caller_that_left_is_charged(faulty, png) -> None:
    used: list[float] = []

    async def leave() -> None:
        task = asyncio.ensure_future(submit(faulty, png, "spin", on_cpu_s=used.append))
        while idle(faulty) == len(before):
            await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(TIMEOUT_S):
            while not used:
                await asyncio.sleep(0.01)

    before = idle_pids(faulty)
    RUNNER.run(leave())
    wait_for_replacements(faulty, before)


def test_a_decoder_without_memory_does_not_work(png) -> None:
    decoder = DecoderPool(LIMITS, settings_of("decoding", workers=1, memory_bytes=1))
    RUNNER.run(decoder.start())
    assert not decoder.is_working
    with raises_problem("not_ready", match="does not work"):
        decode_with(decoder, png)
    decoder.close()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_decoder_whose_workers_are_stopped_or_dead_does_not_work_until_they_are_replaced(
    decoder, number
) -> None:
    before = idle_pids(decoder)
    assert decoder.is_working
    for pid in before:
        os.kill(pid, number)
    assert wait_for_state(before, {"T", "Z", "gone"})
    assert not decoder.is_working
    wait_for_replacements(decoder, before, count=len(before))
    assert decoder.is_working


def wait_for_state(pids: set[int], states: set[str]) -> bool:
    """Waits until the kernel reports one of the states for every process."""

    def state(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # no such file, or no such process
            return "gone"

    ends_at = time.monotonic() + TIMEOUT_S
    while time.monotonic() < ends_at:
        if all(state(pid) in states for pid in pids):
            return True
        time.sleep(0.001)
    return False


def test_a_decoder_above_its_memory_limit_fails_one_request(faulty, png) -> None:
    with raises_problem("unusable_image", match="too much memory"):
        decode_with(faulty, png, "grow")
    for _ in range(3):
        decode_with(faulty, png)


def test_an_unexpected_error_is_raised_with_its_traceback(faulty, png) -> None:
    with pytest.raises(RuntimeError) as defect:
        decode_with(faulty, png, "defect")
    assert "ZeroDivisionError" in defect.value.__notes__[0]


def test_workers_ignore_the_signals_of_the_terminal(decoder, png) -> None:
    decode_with(decoder, png)
    before = idle_pids(decoder)
    for pid in before:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    for _ in range(4):
        decode_with(decoder, png)
    assert pids(decoder) == before


def test_an_image_whose_caller_left_while_it_waited_is_not_decoded(faulty, png) -> None:
    async def leave() -> None:
        busy = [asyncio.ensure_future(submit(faulty, png, "slow")) for _ in range(2)]
        left = [asyncio.ensure_future(submit(faulty, png, "hang")) for _ in range(4)]
        await asyncio.sleep(0)  # all calls have started
        for task in left:
            task.cancel()
        await asyncio.gather(*busy)
        await asyncio.gather(submit(faulty, png), submit(faulty, png))

    before = idle_pids(faulty)
    RUNNER.run(leave())
    assert pids(faulty) == before  # a hanging image would have cost a worker


async def start_twice(decoder: DecoderPool) -> None:
    await asyncio.gather(decoder.start(), decoder.start())


def test_a_closed_decoder_has_no_processes_and_refuses_images(png) -> None:
    decoder = DecoderPool(LIMITS, settings_of("decoding", workers=1))
    with raises_problem("not_ready"):
        decode_with(decoder, png)
    RUNNER.run(start_twice(decoder))
    started = pids(decoder)
    assert len(started) == 2  # and a spare one
    assert decoder.is_working
    decoder.close()
    assert not decoder.is_working
    assert not any(map(psutil.pid_exists, started))
    with raises_problem("not_ready"):
        decode_with(decoder, png)


PROGRAM = """
import asyncio, os, sys
from service.decoding.formats import Declared
from service.decoding.pool import DecoderPool, DecodingSettings
from service.settings import ImageSettings
from tests.service.settings import settings_of

if __name__ == "__main__":
    decoder = DecoderPool(ImageSettings(), DecodingSettings(workers=1))
    asyncio.run(decoder.start())
    print(next(iter(decoder._workers)).pid, flush=True)
    if sys.argv[1] == "optimize":
        print(decoder.is_working, sys.flags.optimize)
    if sys.argv[1] == "forget":
        sys.exit(3)
    sys.stdin.read()
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a process with a decoder that prints its worker's pid: (mode, options) -> Popen."""
    file = tmp_path / "decodes.py"
    file.write_text(PROGRAM)

    def start(mode: str, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *options, str(file), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )

    return start


@pytest.mark.slow  # imports torch twice
def test_workers_end_when_their_parent_is_killed(program) -> None:
    with program("wait") as parent:
        worker_process = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    worker_process.wait(timeout=TIMEOUT_S)


@pytest.mark.slow  # imports torch twice
def test_a_parent_that_does_not_close_the_decoder_ends_with_its_own_status(program) -> None:
    with program("forget") as parent:
        pid = int(parent.stdout.readline())
        assert parent.wait(timeout=TIMEOUT_S) == 3
    wait_until(lambda: not psutil.pid_exists(pid), TIMEOUT_S)


@pytest.mark.slow  # imports torch twice
def test_the_decoder_works_without_assertions(program) -> None:
    with program("optimize", "-O") as parent:
        output, _ = parent.communicate(timeout=TIMEOUT_S)
    assert output.split()[1:] == ["True", "1"]


def test_the_kernel_kills_a_hanging_worker_without_its_parent(png) -> None:
    settings = {
        "images": LIMITS.model_dump(),
        "decoding": settings_of("decoding", timeout_s=0.25).model_dump(),
    }
    process = UNRESTRICTED.fork(json.dumps(settings).encode())
    with process.connection, process.exit_status:
        report_bytes, _ = HEADER.unpack(process.connection.recv(HEADER.size))
        process.connection.recv(report_bytes, socket.MSG_WAITALL)
        process.connection.sendall(DecodeJob(png, Declared(), INPUT, "hang").message())
        exit_code = process.exit_status.recv(4)
    assert int.from_bytes(exit_code, signed=True) == -signal.SIGALRM


def test_the_cpu_time_of_every_image_is_measured(decoder, photo) -> None:
    used: list[float] = []
    decode_with(decoder, encoded(photo.resize((3000, 3000)), "PNG"), on_cpu_s=used.append)
    transparent = encoded(Image.new("RGBA", (3000, 3000)), "PNG")  # refused after decoding
    with raises_problem("unusable_image"):
        decode_with(decoder, transparent, on_cpu_s=used.append)
    assert len(used) == 2
    assert all(0 < seconds < 60 for seconds in used)


def photos_of_24_megapixels() -> Iterator[bytes]:
    """Yields large images of every kind that is converted, rotated or scaled."""
    gray = Image.linear_gradient("L").resize((6000, 4000))
    turned = Image.Exif()
    turned[274] = 6
    for mode, file_format, options in (
        ("RGB", "JPEG", {"exif": turned}),
        ("RGB", "JPEG", {"progressive": True}),
        ("CMYK", "JPEG", {}),
        ("RGBA", "WEBP", {"method": 0}),
        ("RGBA", "PNG", {"compress_level": 1, "exif": turned}),
        ("P", "PNG", {"transparency": 3}),
        ("LA", "PNG", {}),
    ):
        image = gray.convert(mode)
        if "A" in mode:
            image.putalpha(gray)
        file = BytesIO()
        image.save(file, file_format, **options)
        yield file.getvalue()
    file = BytesIO()
    Image.fromarray(np.asarray(gray).astype(np.uint16) * 257).save(file, "PNG", transparency=9)
    yield file.getvalue()


@pytest.mark.slow
def test_an_image_of_24_megapixels_of_any_kind_decodes_within_the_default_memory() -> None:
    decoder = DecoderPool(
        LIMITS, settings_of("decoding", workers=1, timeout_s=TIMEOUT_S, cpu_s=TIMEOUT_S)
    )
    RUNNER.run(decoder.start())
    for data in photos_of_24_megapixels():
        assert np.isfinite(decode_with(decoder, data).pixels).all()
    decoder.close()


def test_a_killed_idle_worker_fails_no_request(decoder, png) -> None:
    processes = [psutil.Process(pid) for pid in pids(decoder)]
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, timeout=TIMEOUT_S)
    assert decode_with(decoder, png).warnings == ()
    assert decode_with(decoder, png).warnings == ()
    wait_for_replacements(decoder, {process.pid for process in processes}, len(processes))


def test_an_image_larger_than_a_socket_buffer_is_decoded(decoder) -> None:
    noise = np.random.default_rng(5).integers(0, 256, (1000, 1000, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(noise).save(file, "PNG", compress_level=0)
    job = DecodeJob(file.getvalue(), Declared(), Preprocessing(size=700), "r")
    expected = resize(torch.from_numpy(noise).permute(2, 0, 1), 700)
    assert torch.equal(torch.from_numpy(RUNNER.run(decoder.decode(job)).pixels), expected)  # 5.9 MB


def test_the_worker_of_a_caller_that_leaves_is_reused(faulty, png) -> None:
    before = idle_pids(faulty)

    async def leave() -> None:
        left = [asyncio.ensure_future(submit(faulty, png, "slow")) for _ in range(2)]
        while idle(faulty) > len(before) - 2:
            await asyncio.sleep(0)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        assert idle(faulty) == len(before) - 2
        assert (await submit(faulty, png)).warnings == ()

    RUNNER.run(leave())
    assert pids(faulty) == before


def test_the_start_of_a_worker_is_retried(png, monkeypatch, caplog) -> None:
    monkeypatch.setattr("service.decoding.pool._RESTART_DELAY_S", 0.01)
    decoder = DecoderPool(LIMITS, settings_of("decoding", workers=1), forks=FAILING)
    RUNNER.run(decoder.start())
    processes = [psutil.Process(pid) for pid in pids(decoder)]
    FAILING.faults = iter([RuntimeError("a decoder process did not start"), OSError("no memory")])
    for process in processes:
        process.kill()
        process.wait(TIMEOUT_S)
    assert decode_with(decoder, png).warnings == ()
    assert "cannot start a decoder process: no memory" in caplog.text
    decoder.close()


def test_the_socket_to_a_fork_server_that_has_ended_is_closed() -> None:
    control = ENDED.start()
    control.shutdown(socket.SHUT_RDWR)  # it ends, as after a kill
    with pytest.raises(OSError):
        ENDED.fork(b"{}")
    assert control.fileno() == -1

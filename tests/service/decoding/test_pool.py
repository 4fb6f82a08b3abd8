"""Decoding in worker processes: the same pictures and problems, and what a lost worker costs."""

import asyncio
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from eulerlora.preprocess import resize
from eulerlora.seeds import content_seed
from eulerlora_client.contract.problems import NotReady, UnsupportedMedia, UnusableImage
from service.decoding import pool as decoding_processes
from service.decoding import worker as decoding_worker
from service.decoding.decode import Declared, decode
from service.decoding.messages import received
from service.decoding.pool import Decoded, Decoder
from service.decoding.process import DecodingProcess
from service.settings import DecodingSettings, ImageLimits

LIMITS = ImageLimits()
SIZE = 48
HANG_S = 60.0
TIMEOUT_S = 60
RUNNER = asyncio.Runner()  # a decoder belongs to one event loop


@pytest.fixture(scope="module", autouse=True)
def one_loop() -> Iterator[None]:
    """Ends the loop of all tests, after their decoders."""
    yield
    RUNNER.close()


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    """Two workers that give up after two seconds."""
    decoder = Decoder(LIMITS, DecodingSettings(workers=2, timeout_s=2.0))
    decoder.start()
    yield decoder
    decoder.close()


@pytest.fixture(scope="module")
def faulty() -> Iterator[Decoder]:
    """Two workers that give up after one second; a job says by its revision how to fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding_worker, "work", work_faultily)
        decoder = Decoder(LIMITS, DecodingSettings(workers=2, timeout_s=1.0))
        decoder.start()
        yield decoder
        decoder.close()


def work_faultily(*args: object) -> None:
    """`decoding_worker.work`, but for jobs whose revision names a fault."""
    plain = decoding_worker.perform

    def perform(job: decoding_worker.Job, limits: ImageLimits) -> object:
        if job.revision == "hang":
            time.sleep(HANG_S)
        if job.revision == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        if job.revision == "slow":
            time.sleep(0.5)
        if job.revision == "grow":
            return plain_of(lambda: bytearray(3 * 1024**3))
        if job.revision == "device":
            return UnusableImage(repr(os.environ.get("CUDA_VISIBLE_DEVICES")))
        if job.revision == "defect":
            return plain_of(lambda: 1 // 0)
        return plain(job, limits)

    def plain_of(fault: Callable[[], object]) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoding_worker, "decode", lambda *_: fault())
            return plain(decoding_worker.Job(b"", Declared(), SIZE, ""), LIMITS)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding_worker, "perform", perform)
        REAL_WORK(*args)


REAL_WORK = decoding_worker.work


def ask(decoder: Decoder, content: bytes, revision: str = "r") -> Awaitable[Decoded]:
    return decoder.decode(content, Declared("image/png", "a.png"), SIZE, revision)


def answer(decoder: Decoder, content: bytes, revision: str = "r") -> Decoded:
    async def asked() -> Decoded:
        return await ask(decoder, content, revision)

    return RUNNER.run(asked())


def pids(decoder: Decoder) -> set[int]:
    return {worker.pid for worker in decoder._workers}


def replaced(decoder: Decoder, before: set[int], count: int = 1) -> None:
    """Returns once so many of the workers are others than before."""

    async def story() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while len(pids(decoder) - before) < count or len(decoder._idle) < len(before):
                await asyncio.sleep(0.01)

    RUNNER.run(story())
    assert len(before & pids(decoder)) == len(before) - count


def test_a_worker_gives_what_decoding_here_gives(decoder, png) -> None:
    picture = decode(png, LIMITS, Declared("image/png"))
    decoded = answer(decoder, png)
    assert torch.equal(decoded.pixels, resize(picture.pixels, SIZE))
    assert decoded.content_seed == content_seed(picture.pixels, "r")
    assert decoded.warnings == ()
    assert 0 < decoded.decode_s < 10
    assert answer(decoder, png, "another revision").content_seed != decoded.content_seed


def test_warnings_and_problems_are_those_of_decoding_here(decoder, png, photo, encode) -> None:
    decoded = answer(decoder, encode(photo.convert("LA"), "PNG"))
    assert decoded.warnings == ("converted from LA to RGB",)
    with pytest.raises(UnsupportedMedia, match="wanted a JPEG, PNG or WebP"):
        answer(decoder, b"GIF89a")
    with pytest.raises(UnusableImage, match="the PNG data is broken or truncated"):
        answer(decoder, png[:-30])


def test_a_decoder_that_hangs_costs_one_request(faulty, png) -> None:
    before = pids(faulty)
    started = time.monotonic()
    with pytest.raises(UnusableImage, match="took too long"):
        answer(faulty, png, "hang")
    assert time.monotonic() - started < HANG_S / 2
    assert answer(faulty, png).pixels.shape == (3, SIZE, SIZE)
    replaced(faulty, before)


def test_a_decoder_that_dies_costs_one_request_and_others_in_flight_nothing(faulty, png) -> None:
    async def both() -> list[Decoded | BaseException]:
        return await asyncio.gather(
            ask(faulty, png, "slow"), ask(faulty, png, "die"), return_exceptions=True
        )

    unharmed, lost = RUNNER.run(both())
    assert isinstance(unharmed, Decoded)
    assert isinstance(lost, UnusableImage)
    assert answer(faulty, png).warnings == ()


def test_a_decoder_that_takes_too_much_memory_costs_one_request(faulty, png) -> None:
    with pytest.raises(UnusableImage, match="too much memory"):
        answer(faulty, png, "grow")
    for _ in range(3):
        answer(faulty, png)


def test_a_defect_is_raised_with_where_it_lay(faulty, png) -> None:
    with pytest.raises(ZeroDivisionError) as defect:
        answer(faulty, png, "defect")
    assert "in perform" in defect.value.__notes__[0]


def test_workers_leave_the_signals_of_the_terminal_to_their_parent(decoder, png) -> None:
    answer(decoder, png)
    before = pids(decoder)
    for pid in before:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    for _ in range(4):
        answer(decoder, png)
    assert pids(decoder) == before


def test_an_image_whose_caller_left_while_it_waited_is_not_decoded(faulty, png) -> None:
    async def leave() -> float:
        busy = [asyncio.ensure_future(ask(faulty, png, "slow")) for _ in range(2)]
        left = [asyncio.ensure_future(ask(faulty, png, "hang")) for _ in range(4)]
        await asyncio.sleep(0)  # all are handed over
        for each in left:
            each.cancel()
        await asyncio.gather(*busy)
        started = time.monotonic()
        await asyncio.gather(ask(faulty, png), ask(faulty, png))
        return time.monotonic() - started

    assert RUNNER.run(leave()) < 0.9  # seconds; one that hangs would take a worker for one


def test_a_closed_decoder_leaves_no_process_and_refuses(png) -> None:
    decoder = Decoder(LIMITS, DecodingSettings(workers=1))
    with pytest.raises(NotReady):
        answer(decoder, png)
    decoder.start()
    (pid,) = pids(decoder)
    decoder.close()
    assert not psutil.pid_exists(pid)
    with pytest.raises(NotReady):
        answer(decoder, png)


PROGRAM = """
import asyncio, os, sys
from service.decoding.decode import Declared
from service.decoding.pool import Decoder, DecodingSettings
from service.settings import ImageLimits

if __name__ == "__main__":
    decoder = Decoder(ImageLimits(), DecodingSettings(workers=1))
    decoder.start()
    print(decoder._idle[0].pid, flush=True)
    if sys.argv[1] == "forget":
        sys.exit(3)
    sys.stdin.read()
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], subprocess.Popen[str]]:
    """(what it does) -> a process that runs a decoder and prints the pid of its worker."""
    file = tmp_path / "decodes.py"
    file.write_text(PROGRAM)

    def start(manner: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(file), manner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )

    return start


@pytest.mark.slow  # imports torch twice
def test_workers_end_when_their_parent_is_killed(program) -> None:
    with program("wait") as parent:
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    worker.wait(timeout=30)


@pytest.mark.slow  # imports torch twice
def test_a_parent_that_forgets_to_close_still_ends_with_its_own_status(program) -> None:
    with program("forget") as parent:
        worker = int(parent.stdout.readline())
        assert parent.wait(timeout=60) == 3
    assert not psutil.pid_exists(worker)


def test_a_worker_sees_no_gpu(faulty, png) -> None:
    with pytest.raises(UnusableImage, match=r": ''$"):
        answer(faulty, png, "device")


def test_the_kernel_ends_a_worker_that_hangs_whether_its_parent_lives_or_not(png) -> None:
    context = multiprocessing.get_context("forkserver")
    ours, theirs = socket.socketpair()
    worker = context.Process(target=work_faultily, args=(theirs, LIMITS, 1024**3, 0.5))
    worker.start()
    assert received(ours) == decoding_worker.READY
    decoding_worker.Job(png, Declared(), SIZE, "hang").message().send(ours)
    worker.join(timeout=HANG_S / 2)
    assert worker.exitcode == -signal.SIGALRM


def photos_of_24_megapixels() -> Iterator[bytes]:
    """Of every kind that is converted, turned or scaled on the way."""
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
        picture = gray.convert(mode)
        if "A" in mode:
            picture.putalpha(gray)
        file = BytesIO()
        picture.save(file, file_format, **options)
        yield file.getvalue()
    file = BytesIO()
    Image.fromarray(np.asarray(gray).astype(np.uint16) * 257).save(file, "PNG", transparency=9)
    yield file.getvalue()


@pytest.mark.slow
def test_an_image_of_24_megapixels_of_any_kind_decodes_within_the_default_limits() -> None:
    decoder = Decoder(LIMITS, DecodingSettings(workers=1, timeout_s=60))
    decoder.start()
    for data in photos_of_24_megapixels():
        assert answer(decoder, data).pixels.isfinite().all()
    decoder.close()


def test_a_worker_uses_one_thread(decoder) -> None:
    for pid in pids(decoder):
        assert psutil.Process(pid).num_threads() == 1


def test_an_idle_worker_that_is_killed_costs_no_request(decoder, png) -> None:
    workers = [psutil.Process(pid) for pid in pids(decoder)]
    for worker in workers:
        worker.kill()
    psutil.wait_procs(workers, timeout=10)
    assert answer(decoder, png).warnings == ()
    assert answer(decoder, png).warnings == ()
    replaced(decoder, {worker.pid for worker in workers}, count=2)


def test_an_image_larger_than_a_socket_holds_gets_through(decoder) -> None:
    noise = np.random.default_rng(5).integers(0, 256, (1000, 1000, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(noise).save(file, "PNG", compress_level=0)

    async def large() -> Decoded:
        return await decoder.decode(file.getvalue(), Declared(), 700, "r")  # 5.9 MB come back

    wanted = resize(torch.from_numpy(noise).permute(2, 0, 1), 700)
    assert torch.equal(RUNNER.run(large()).pixels, wanted)


def test_the_worker_of_a_caller_who_leaves_ends_its_work_and_takes_the_next(faulty, png) -> None:
    before = pids(faulty)

    async def leave() -> None:
        left = [asyncio.ensure_future(ask(faulty, png, "slow")) for _ in range(2)]
        while faulty._idle:
            await asyncio.sleep(0)
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        assert faulty._idle == []
        assert (await ask(faulty, png)).warnings == ()

    RUNNER.run(leave())
    assert pids(faulty) == before


def test_a_worker_that_cannot_be_started_is_tried_again(png, monkeypatch, caplog) -> None:
    monkeypatch.setattr(decoding_processes, "START_AGAIN_S", 0.01)
    decoder = Decoder(LIMITS, DecodingSettings(workers=1))
    decoder.start()
    worker = psutil.Process(pids(decoder).pop())
    faults = iter([RuntimeError("a decoding process did not start"), OSError("no memory")])

    def failing(*arguments: Any) -> DecodingProcess:
        for fault in faults:
            raise fault
        return DecodingProcess(*arguments)

    monkeypatch.setattr(decoding_processes, "DecodingProcess", failing)
    worker.kill()
    worker.wait(TIMEOUT_S)
    assert answer(decoder, png).warnings == ()
    assert "no decoding process could be started: no memory" in caplog.text
    decoder.close()

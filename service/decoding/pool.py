"""A pool of decoder processes: an image that hangs or kills its decoder fails only its own request.

Every process has a socket, decodes at most one image at a time, and is driven by the event loop
without a thread. It is forked by multiprocessing's fork server, which has imported only the
decoder, and never by the service's process with its threads and its device.
"""

import asyncio
import atexit
import logging
import math
import multiprocessing
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from io import BytesIO
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from eulerlora.settings import Preprocessing
from eulerlora_client.contract.answers import ImageQuality, PredictionWarning
from eulerlora_client.contract.problems import NotReady, Problem, UnusableImage
from service.decoding.decode import Declared
from service.decoding.worker import (
    READY,
    DecodeFailure,
    DecodeJob,
    DecodeResult,
    MessageReader,
    OutOfDecodingMemoryError,
    receive,
    result_from_message,
    run_worker,
)
from service.settings import DecodingSettings, ImageSettings

START_TIMEOUT_S = 120.0  # the first start imports torch, possibly from a slow disk
STOPPED_STATES = {"T", "t", "Z", "X"}  # stopped, traced, zombie, dead (proc_pid_stat(5))
CRASHES = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGABRT,
}

TEST_SIDE_PX = 1024  # of the test image; takes as much memory as a small photograph
TEST_INPUT = Preprocessing(size=32)
logger = logging.getLogger(__name__)
ATTEMPTS = 2
RESTART_DELAY_S = 1.0
RETRY_AFTER_S = 1.0
STOP_CHECK_INTERVAL_S = 1.0
TEST_INTERVAL_S = 10.0


class LossCause(Enum):
    """Why a process was lost with an image."""

    CPU_TIME = auto()  # the image exceeded its budget
    TIME = auto()  # no result within the time limit, with CPU time to spare
    CRASH = auto()  # of the decoder, possibly because of the image
    KILLED = auto()  # or stopped, from outside


@dataclass(frozen=True)
class WorkerLoss:
    """The outcome of a job whose process cannot be used again; cpu_s is an upper bound."""

    cause: LossCause
    cpu_s: float


DecodeOutcome = DecodeResult | DecodeFailure | WorkerLoss


class DecodingProcess:
    """A decoder process and its socket; it decodes one image at a time.

    The constructor blocks until the process is ready; call it outside of the event loop. Then call
    `attach` in the loop.
    on_outcome: called in the loop with the outcome of every job, even if its caller has left.
    on_loss: called in the loop, once, when the process has ended or cannot be used again.
    """

    def __init__(
        self,
        limits: ImageSettings,
        settings: DecodingSettings,
        on_outcome: Callable[["DecodingProcess", DecodeOutcome], None],
        on_loss: Callable[["DecodingProcess", str], None],
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([DecodeJob.__module__])
        self._settings = settings
        self._on_outcome = on_outcome
        self._on_loss = on_loss
        self._loop: asyncio.AbstractEventLoop | None = None  # None after a loss
        self._reader: MessageReader | None = None  # set while the process has an image
        self._connection, remote = socket.socketpair()
        self._process = context.Process(
            target=run_worker, args=(remote, limits, settings), name="decoding"
        )
        self._process.start()
        remote.close()
        self._await_ready()

    def _await_ready(self) -> None:
        self._connection.settimeout(START_TIMEOUT_S)
        try:
            message = receive(self._connection)
        except (EOFError, OSError) as error:
            self.end()
            raise RuntimeError("a decoder process did not start") from error
        if message != READY:
            self.end()
            raise RuntimeError("a decoder process did not start: it sent an unknown message")
        self._connection.setblocking(False)

    def attach(self) -> None:
        """Watches the process in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._connection, self._read)
        self._loop.add_reader(self._process.sentinel, self._on_exit)

    @property
    def pid(self) -> int | None:
        """The process id."""
        return self._process.pid

    @property
    def is_usable(self) -> bool:
        """True from `attach` until the process is lost."""
        return self._loop is not None

    @property
    def is_stopped(self) -> bool:
        """True if the process has ended, or was stopped by a signal and does not run."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return True
        return status.rpartition(")")[2].split()[0] in STOPPED_STATES

    def submit(self, job: DecodeJob) -> "asyncio.Future[DecodeOutcome]":
        """Returns a future of the outcome of a job; call it after `attach`.

        Cancelling the future does not interrupt the process.
        """
        loop = asyncio.get_running_loop()
        self._outcome = outcome = loop.create_future()
        self._reader = MessageReader(job.pixel_bytes)
        self._started_at = time.monotonic()
        self._cpu_budget_s = self._settings.cpu_budget_s(len(job.content))
        self._timer = loop.call_later(
            self._settings.timeout_s, self._lose, LossCause.TIME, "an image took too long"
        )
        try:
            self._unsent = job.to_message().send_some(self._connection)
        except OSError:
            self._unsent = memoryview(b"")  # `_on_exit` follows
        if self._unsent:
            loop.add_writer(self._connection, self._write)
        return outcome

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[self._connection.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = memoryview(b"")  # `_on_exit` follows
        if not self._unsent and self._loop is not None:
            self._loop.remove_writer(self._connection)

    def _read(self) -> None:
        """Reads the result; at the end of the stream, `_on_exit` follows."""
        try:
            message = None if self._reader is None else self._reader.read(self._connection)
        except (EOFError, OSError):
            message = None
            if self._loop is not None:
                self._loop.remove_reader(self._connection)
        if message is not None:
            outcome = result_from_message(message)
            self._finish(outcome)
            if isinstance(outcome, DecodeFailure) and isinstance(
                outcome.error, OutOfDecodingMemoryError
            ):
                self._lose(LossCause.KILLED, "its heap is fragmented")

    def _on_exit(self) -> None:
        self._read()  # the process may have sent a result before it ended
        code = self._process.exitcode
        if self._loop is None or code is None:
            return
        number = -code
        cause = LossCause.CRASH if number in CRASHES else LossCause.KILLED
        if number == signal.SIGPROF:
            cause = LossCause.CPU_TIME
        elif number == signal.SIGALRM:
            cause = LossCause.TIME
        self._lose(cause, f"it ended with exit code {code}")

    def lose(self, reason: str) -> None:
        """Gives the process up; the caller of its image gets a WorkerLoss."""
        self._lose(LossCause.KILLED, reason)

    def _lose(self, cause: LossCause, reason: str) -> None:
        if self._loop is None:
            return
        self._stop_watching()
        if self._reader is not None:
            elapsed_s = time.monotonic() - self._started_at
            self._finish(WorkerLoss(cause, min(elapsed_s, self._cpu_budget_s)))
        self._on_loss(self, reason)

    def _finish(self, outcome: DecodeOutcome) -> None:
        self._reader = None
        self._timer.cancel()
        if not self._outcome.done():
            self._outcome.set_result(outcome)
        self._on_outcome(self, outcome)

    def _stop_watching(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._connection)
            loop.remove_writer(self._connection)
            loop.remove_reader(self._process.sentinel)

    def end(self) -> None:
        """Kills the process; no caller may still wait for a result."""
        if self._reader is not None:
            self._timer.cancel()
        self._stop_watching()
        self._connection.close()
        self._process.kill()
        self._process.join()


class SelfTest:
    """Decodes a test image, at the start and while no other image is decoded.

    decode: decodes an image; raises Problem. decoded: the number of images decoded so far.
    timeout_s: of the test image. interval_s: between two test images.
    """

    def __init__(
        self,
        limits: ImageSettings,
        decode: Callable[[DecodeJob], Awaitable[object]],
        decoded: Callable[[], int],
        timeout_s: float,
        interval_s: float,
    ) -> None:
        self._limits = limits
        self._decode = decode
        self._decoded = decoded
        self._timeout_s = timeout_s
        self._interval_s = interval_s
        self._passed = False

    @property
    def passed(self) -> bool:
        """True if the last test image, or another one at that time, was decoded."""
        return self._passed

    async def run_forever(self) -> None:
        """Runs the test after each interval in which no image was decoded."""
        while True:
            decoded = self._decoded()
            await asyncio.sleep(self._interval_s)
            if self._decoded() == decoded:
                await self.run()

    async def run(self) -> None:
        """Runs the test and logs a change of its result."""
        job = DecodeJob(encoded_image(self._limits), Declared(), TEST_INPUT, "")
        decoded, fault = self._decoded(), ""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._decode(job)
        except TimeoutError:
            fault = "no result in time"
        except Problem as problem:
            fault = problem.detail
        had_passed, self._passed = self._passed, self._decoded() > decoded
        if not self._passed:
            logger.error("the image decoder does not work: %s", fault)
        elif not had_passed:
            logger.info("the image decoder works")


def encoded_image(limits: ImageSettings) -> bytes:
    """Returns a PNG of about a megapixel, or of the largest size within the limits."""
    largest = min(TEST_SIDE_PX, limits.max_side, math.isqrt(limits.max_pixels))
    side = max(limits.min_side, largest)
    gray = Image.linear_gradient("L").resize((side, side))
    file = BytesIO()
    Image.merge("RGB", (gray, gray.rotate(90), gray.rotate(180))).save(
        file, "PNG", compress_level=1
    )
    return file.getvalue()


FINAL_CAUSES = {LossCause.CPU_TIME, LossCause.TIME}


@dataclass(frozen=True)
class Decoded:
    """A decoded image as the network's input.

    pixels: (3, size, size) float32 in [0, 1]. content_seed: a seed derived from the decoded image
    and the model's revision. warnings: for the user. decode_s: seconds of decoding and resizing.
    quality: of the whole image, None if not measured.
    """

    pixels: Tensor
    content_seed: int
    warnings: tuple[PredictionWarning, ...]
    decode_s: float
    quality: ImageQuality | None = None


class Decoder:
    """A fixed number of worker processes, used from one event loop.

    An image waits for an idle worker. A worker that was lost or stopped is replaced.
    """

    def __init__(self, limits: ImageSettings, settings: DecodingSettings) -> None:
        self._limits = limits
        self._settings = settings
        self._running = False
        self._start: asyncio.Task[None] | None = None
        self._workers: set[DecodingProcess] = set()
        self._idle: asyncio.Queue[DecodingProcess] = asyncio.Queue()  # and lost ones
        self._on_cpu_s: dict[DecodingProcess, Callable[[float], None]] = {}
        self._starters = ThreadPoolExecutor(settings.workers, "decoder-start")
        self._checks: list[asyncio.Task[None]] = []
        self._decoded = 0
        self._test = SelfTest(
            limits, self._decode, lambda: self._decoded, settings.timeout_s, TEST_INTERVAL_S
        )

    async def start(self) -> None:
        """Starts the workers and decodes a test image; takes seconds.

        A second call waits for the first one.
        """
        if self._start is None:
            self._start = asyncio.create_task(self._start_workers())
        await asyncio.shield(self._start)

    async def _start_workers(self) -> None:
        atexit.register(self.close)  # otherwise multiprocessing waits for the workers at exit
        loop = asyncio.get_running_loop()
        self._running = True
        starts = (
            loop.run_in_executor(self._starters, self._start_worker)
            for _ in range(self._settings.workers)
        )
        for worker in await asyncio.gather(*starts):
            self._add(worker)
        self._checks.append(asyncio.create_task(self._lose_stopped_forever()))
        await self._test.run()
        self._checks.append(asyncio.create_task(self._test.run_forever()))

    def close(self) -> None:
        """Kills the workers; no caller may still wait for a result."""
        self._running = False
        for check in self._checks:
            if not check.get_loop().is_closed():
                check.cancel()
        self._checks.clear()
        self._starters.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        atexit.unregister(self.close)

    @property
    def is_working(self) -> bool:
        """True if a worker can run and the last test image was decoded."""
        return (
            self._running
            and self._test.passed
            and any(worker.is_usable and not worker.is_stopped for worker in self._workers)
        )

    async def decode(
        self,
        content: bytes,
        declared: Declared,
        preprocessing: Preprocessing,
        revision: str,
        with_quality: bool = False,
        on_cpu_s: Callable[[float], None] = lambda _: None,
    ) -> Decoded:
        """Returns the image in `content` as input of a model with this preprocessing.

        declared: the type that the client declared. revision: of the model, for the content seed.
        with_quality: also measure the image quality. on_cpu_s: called with the CPU seconds of every
        attempt, also if it fails or the caller has left. Raises the problems of `decode.decode`,
        UnusableImage for an image that exceeds the limits on CPU time or memory or that crashes its
        decoder twice, and NotReady if decoders fail for another reason. If the caller is cancelled
        while the image waits, it is not decoded.
        """
        if not (self._running and self._test.passed):
            raise NotReady("the image decoder does not work", RETRY_AFTER_S)
        job = DecodeJob(content, declared, preprocessing, revision, with_quality)
        return await self._decode(job, on_cpu_s)

    async def _decode(
        self, job: DecodeJob, on_cpu_s: Callable[[float], None] = lambda _: None
    ) -> Decoded:
        attempts = 0
        while True:
            attempts += 1
            outcome = await (await self._submit(job, on_cpu_s))
            if isinstance(outcome, DecodeResult):
                return decoded(outcome)
            if isinstance(outcome, DecodeFailure):
                raise outcome.error
            if outcome.cause in FINAL_CAUSES or attempts == ATTEMPTS:
                raise _problem_of(outcome.cause)

    async def _submit(
        self, job: DecodeJob, on_cpu_s: Callable[[float], None]
    ) -> "asyncio.Future[DecodeOutcome]":
        """Waits for an idle worker, submits the job and returns the future of its outcome."""
        worker = await self._idle.get()
        while not worker.is_usable:  # lost while idle
            worker = await self._idle.get()
        self._on_cpu_s[worker] = on_cpu_s
        return worker.submit(job)

    def _on_outcome(self, worker: DecodingProcess, outcome: DecodeOutcome) -> None:
        self._on_cpu_s.pop(worker)(outcome.cpu_s)
        if isinstance(outcome, DecodeResult):
            self._decoded += 1
        if not isinstance(outcome, WorkerLoss):
            self._idle.put_nowait(worker)

    def _add(self, worker: DecodingProcess) -> None:
        worker.attach()
        self._idle.put_nowait(worker)

    def _on_loss(self, lost: DecodingProcess, reason: str) -> None:
        if self._running:
            logger.warning("replacing decoder process %s: %s", lost.pid, reason)
            self._start_replacement(lost)

    def _start_replacement(self, lost: DecodingProcess | None = None) -> None:
        if self._running:
            loop = asyncio.get_running_loop()
            start = loop.run_in_executor(self._starters, self._end_and_start, lost)
            start.add_done_callback(self._on_start)

    def _end_and_start(self, lost: DecodingProcess | None) -> DecodingProcess:
        if lost is not None:
            lost.end()
            self._workers.discard(lost)
        return self._start_worker()

    def _on_start(self, start: "asyncio.Future[DecodingProcess]") -> None:
        if start.cancelled() or not self._running:
            return
        if error := start.exception():
            logger.error("cannot start a decoder process: %s", error)
            asyncio.get_running_loop().call_later(RESTART_DELAY_S, self._start_replacement)
        else:
            self._add(start.result())

    def _start_worker(self) -> DecodingProcess:
        worker = DecodingProcess(self._limits, self._settings, self._on_outcome, self._on_loss)
        self._workers.add(worker)
        return worker

    async def _lose_stopped_forever(self) -> None:
        while True:
            await asyncio.sleep(STOP_CHECK_INTERVAL_S)
            for worker in tuple(self._workers):
                if worker.is_usable and worker.is_stopped:
                    worker.lose("it was stopped")


def decoded(result: DecodeResult) -> Decoded:
    """Returns a worker's result with its pixels as a tensor."""
    return Decoded(
        torch.from_numpy(result.pixels),
        result.content_seed,
        result.warnings,
        result.decode_s,
        result.quality,
    )


def _problem_of(cause: LossCause) -> Problem:
    """Returns the problem of an image whose worker was lost in every attempt."""
    if cause is LossCause.CPU_TIME:
        return UnusableImage("decoding the image takes too much CPU time")
    if cause is LossCause.CRASH:
        return UnusableImage("the decoder failed twice on this image")
    if cause is LossCause.TIME:
        return NotReady("the image decoder did not answer in time", RETRY_AFTER_S)
    return NotReady("the image decoder was stopped while it decoded", RETRY_AFTER_S)

"""A pool of decoder processes: an image that hangs or kills its decoder fails only its own request.

Every process decodes at most one image at a time; the event loop waits for its result without a
thread. It is forked by multiprocessing's fork server, which has imported only the decoder, and
never by the service's process with its threads and its device.
"""

import asyncio
import atexit
import logging
import math
import multiprocessing
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from eulerlora.settings import Preprocessing
from eulerlora_contract.problems import NotReady, Problem, UnusableImage
from service.decoding.decode import Declared
from service.decoding.worker import (
    LENGTH,
    READY,
    DecodedInput,
    DecodeFailure,
    DecodeJob,
    OutOfDecodingMemoryError,
    message_of,
    run_worker,
)
from service.settings import DecodingSettings, ImageSettings

START_TIMEOUT_S = 120.0  # the first start imports torch, possibly from a slow disk
STOPPED_STATES = {"T", "t", "Z", "X"}  # stopped, traced, zombie, dead (proc_pid_stat(5))
TEST_SIDE_PX = 1024  # of the test image; takes as much memory as a small photograph
TEST_INPUT = Preprocessing(size=32)
ATTEMPTS = 2
RESTART_DELAY_S = 1.0
RETRY_AFTER_S = 1.0
RECEIVE_BYTES = 2**20  # larger than the result for an input of 224 pixels
STOP_CHECK_INTERVAL_S = 1.0
TEST_INTERVAL_S = 10.0
Result = TypeVar("Result")
logger = logging.getLogger(__name__)


class LossCause(Enum):
    """Why a process was lost with an image."""

    CPU_TIME = auto()  # the image exceeded its budget
    TIME = auto()  # no result within the time limit, with CPU time to spare
    CRASH = auto()  # of the decoder, possibly because of the image
    KILLED = auto()  # or stopped, from outside


FINAL_CAUSES = {LossCause.CPU_TIME, LossCause.TIME}
CAUSES: dict[int, LossCause] = {
    signal.SIGPROF: LossCause.CPU_TIME,
    signal.SIGALRM: LossCause.TIME,
    **dict.fromkeys(
        (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT),
        LossCause.CRASH,
    ),
}
"""By the signal that ended the process; KILLED for all others."""


@dataclass(frozen=True)
class WorkerLoss:
    """The outcome of a job whose process was lost; cpu_s is an upper bound."""

    cause: LossCause
    cpu_s: float


DecodeOutcome = DecodedInput | DecodeFailure | WorkerLoss


class DecodingProcess:
    """A decoder process; it runs one job at a time.

    The constructor returns when the process is ready; it raises RuntimeError, and OSError if the
    system cannot start a process. It and `end` may block. `run` is for use in one event loop.
    """

    def __init__(self, limits: ImageSettings, settings: DecodingSettings) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([run_worker.__module__])
        self._settings = settings
        self._buffer = bytearray(RECEIVE_BYTES)  # reused, which saves page faults
        connection, remote = context.Pipe()
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self._process = context.Process(
            target=run_worker, args=(remote, limits, settings), name="decoding"
        )
        self._process.start()
        remote.close()
        try:
            with connection:
                is_ready = connection.poll(START_TIMEOUT_S) and connection.recv() == READY
        except (EOFError, OSError):
            is_ready = False
        if not is_ready:
            self.end()
            raise RuntimeError("a decoder process did not start")
        self._socket.setblocking(False)

    @property
    def pid(self) -> int | None:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The negative number of the signal that ended the process; None while it exists."""
        return self._process.exitcode

    @property
    def is_usable(self) -> bool:
        """False if the process has ended, or was stopped by a signal and does not run."""
        if self._socket.fileno() < 0:
            return False
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] not in STOPPED_STATES

    @property
    def has_ended(self) -> bool:
        """True if the process has ended; unlike `is_usable`, takes a few microseconds."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:  # the socket is closed or reset
            return True

    async def run(self, job: DecodeJob) -> DecodeOutcome:
        """Returns the outcome of a job; after a WorkerLoss, the process has ended."""
        started_at, cause = time.monotonic(), LossCause.TIME
        outcome: DecodedInput | DecodeFailure | None = None
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(self._socket, message_of(job))
                outcome = await self._receive()
        except TimeoutError:
            pass
        except Exception:  # the process has ended, or its message is damaged
            await asyncio.to_thread(self.end)
            cause = CAUSES.get(-(self.exit_code or 0), LossCause.KILLED)
        failure = outcome.error if isinstance(outcome, DecodeFailure) else None
        if outcome is None or isinstance(failure, OutOfDecodingMemoryError):
            await asyncio.to_thread(self.end)  # after the latter, its heap is fragmented
        if outcome is not None:
            return outcome
        budget_s = self._settings.cpu_budget_s(len(job.content))
        return WorkerLoss(cause, min(time.monotonic() - started_at, budget_s))

    async def _receive(self) -> Any:
        """Returns the next message.

        Raises:
            EOFError: If the process ends before.
        """
        loop = asyncio.get_running_loop()
        end, size = 0, LENGTH.size
        while end < size:
            received = await loop.sock_recv_into(self._socket, memoryview(self._buffer)[end:])
            if not received:
                raise EOFError
            end += received
            if size == LENGTH.size <= end:
                size += LENGTH.unpack_from(self._buffer)[0]
                if size > len(self._buffer):
                    self._buffer = self._buffer + bytes(size - len(self._buffer))
        return pickle.loads(memoryview(self._buffer)[LENGTH.size : size])

    def kill(self) -> None:
        """Kills the process; a `run` then returns a WorkerLoss."""
        self._process.kill()

    def end(self) -> None:
        """Kills the process and waits until it has ended; no `run` may be waiting for it."""
        self.kill()
        self._process.join()
        self._socket.close()


def health_check_image(limits: ImageSettings) -> bytes:
    """Returns a PNG of about a megapixel, or of the largest size within the limits."""
    largest = min(TEST_SIDE_PX, limits.max_side, math.isqrt(limits.max_pixels))
    side = max(limits.min_side, largest)
    gray = Image.linear_gradient("L").resize((side, side))
    file = BytesIO()
    Image.merge("RGB", (gray, gray.rotate(90), gray.rotate(180))).save(
        file, "PNG", compress_level=1
    )
    return file.getvalue()


class DecoderPool:
    """A fixed number of decoder processes (the workers), used from one event loop.

    An image waits for an idle worker. A worker that was lost or stopped is replaced. While no other
    image is decoded, a test image is.
    """

    def __init__(self, limits: ImageSettings, settings: DecodingSettings) -> None:
        self._limits = limits
        self._settings = settings
        self._running = False
        self._start: asyncio.Task[None] | None = None
        self._workers: set[DecodingProcess] = set()
        self._idle: asyncio.Queue[DecodingProcess] = asyncio.Queue()
        self._threads = ThreadPoolExecutor(settings.workers, "decoder")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._decoded = 0
        self._passed_test = False

    async def start(self) -> None:
        """Starts the workers and decodes a test image; takes seconds.

        A second call waits for the first one.
        """
        if self._start is None:
            self._start = self._in_background(self._start_workers())
        await asyncio.shield(self._start)

    async def _start_workers(self) -> None:
        atexit.register(self.close)  # otherwise multiprocessing waits for the workers at exit
        self._running = True
        await asyncio.gather(*(self._add_worker() for _ in range(self._settings.workers)))
        self._in_background(self._replace_stopped_forever())
        await self._test()
        self._in_background(self._test_forever())

    def close(self) -> None:
        """Kills the workers; no caller may still wait for a result."""
        self._running = False
        for task in self._tasks:
            if not task.get_loop().is_closed():
                task.cancel()
        for worker in tuple(self._workers):
            worker.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        atexit.unregister(self.close)

    @property
    def is_working(self) -> bool:
        """True if a worker can run and the last test image was decoded."""
        return (
            self._running
            and self._passed_test
            and any(worker.is_usable for worker in tuple(self._workers))
        )

    async def decode(
        self, job: DecodeJob, on_cpu_s: Callable[[float], None] = lambda _: None
    ) -> DecodedInput:
        """Returns the result of a job.

        If the caller is cancelled while the image waits, it is not decoded. The problems of
        `decode.decode` are raised too.

        Args:
            job: Decoded by the next free worker process.
            on_cpu_s: Called with the CPU seconds of every attempt, also if it fails or the caller
                has left.

        Raises:
            UnusableImage: For an image that exceeds the limits on CPU time or memory or that
                crashes its decoder twice.
            NotReady: If decoders fail for another reason.
        """
        if not (self._running and self._passed_test):
            raise NotReady("the image decoder does not work", RETRY_AFTER_S)
        return await self._decode(job, on_cpu_s)

    async def _decode(
        self, job: DecodeJob, on_cpu_s: Callable[[float], None] = lambda _: None
    ) -> DecodedInput:
        attempts = 0
        while True:
            attempts += 1
            while (worker := await self._idle.get()).has_ended:
                self._replace(worker)
            outcome = await asyncio.shield(self._in_background(self._run(worker, job, on_cpu_s)))
            if isinstance(outcome, DecodedInput):
                return outcome
            if isinstance(outcome, DecodeFailure):
                raise outcome.error
            if outcome.cause in FINAL_CAUSES or attempts == ATTEMPTS:
                raise _problem_of(outcome.cause)

    async def _run(
        self, worker: DecodingProcess, job: DecodeJob, on_cpu_s: Callable[[float], None]
    ) -> DecodeOutcome:
        outcome = await worker.run(job)
        on_cpu_s(outcome.cpu_s)
        self._decoded += isinstance(outcome, DecodedInput)
        self._return(worker, not worker.has_ended)
        return outcome

    def _return(self, worker: DecodingProcess, is_usable: bool) -> None:
        """Makes a worker available for the next image, or replaces it."""
        if is_usable:
            self._idle.put_nowait(worker)
        else:
            self._replace(worker)

    def _replace(self, lost: DecodingProcess) -> None:
        if self._running:
            self._in_background(self._replacement(lost))

    async def _replacement(self, lost: DecodingProcess) -> None:
        """Starts a worker in place of a lost one; tries again until it succeeds."""
        await self._in_thread(lost.end)
        self._workers.discard(lost)
        logger.warning("replacing decoder process %s: exit code %s", lost.pid, lost.exit_code)
        while True:
            try:
                return await self._add_worker()
            except (RuntimeError, OSError) as error:
                logger.error("cannot start a decoder process: %s", error)
                await asyncio.sleep(RESTART_DELAY_S)

    async def _add_worker(self) -> None:
        self._idle.put_nowait(await self._in_thread(self._started_worker))

    def _started_worker(self) -> DecodingProcess:
        worker = DecodingProcess(self._limits, self._settings)
        self._workers.add(worker)
        return worker

    async def _replace_stopped_forever(self) -> None:
        while True:
            await asyncio.sleep(STOP_CHECK_INTERVAL_S)
            for worker in tuple(self._workers):
                if not worker.is_usable:
                    worker.kill()  # its `run` then returns, and it is replaced
            for _ in range(self._idle.qsize()):
                worker = self._idle.get_nowait()
                self._return(worker, worker.is_usable)

    async def _test_forever(self) -> None:
        """Decodes the test image after each interval in which no image was decoded."""
        while True:
            decoded = self._decoded
            await asyncio.sleep(TEST_INTERVAL_S)
            if self._decoded == decoded:
                await self._test()

    async def _test(self) -> None:
        """Decodes the test image and logs a change of the result.

        It passes if any image was decoded meanwhile.
        """
        job = DecodeJob(health_check_image(self._limits), Declared(), TEST_INPUT, "")
        decoded, fault = self._decoded, ""
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await self._decode(job)
        except TimeoutError:
            fault = "no result in time"
        except Problem as problem:
            fault = problem.detail
        had_passed, self._passed_test = self._passed_test, self._decoded > decoded
        if not self._passed_test:
            logger.error("the image decoder does not work: %s", fault)
        elif not had_passed:
            logger.info("the image decoder works")

    def _in_thread(self, work: Callable[[], Result]) -> "asyncio.Future[Result]":
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _in_background(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _problem_of(cause: LossCause) -> Problem:
    if cause is LossCause.CPU_TIME:
        return UnusableImage("decoding the image takes too much CPU time")
    if cause is LossCause.CRASH:
        return UnusableImage("the decoder failed twice on this image")
    if cause is LossCause.TIME:
        return NotReady("the image decoder did not answer in time", RETRY_AFTER_S)
    return NotReady("the image decoder was stopped while it decoded", RETRY_AFTER_S)

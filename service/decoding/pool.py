"""A pool of decoder processes: an image that hangs or kills its decoder fails only its own request.

Every process decodes at most one image at a time; the event loop waits for its result without a
thread. It is forked by the `ForkServer`, and never by the service's process with its threads, its
device and its secrets. Whatever it sends is checked, because an image may have taken it over.
"""

import asyncio
import json
import logging
import math
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from eulerlora.settings import Preprocessing
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.problems import NotReady, Problem, UnusableImage
from service.decoding.fork_server import FORK_SERVER, NUMBER, START_TIMEOUT_S, ForkServer
from service.decoding.formats import Declared
from service.decoding.messages import (
    HEADER,
    MAX_FIELDS_BYTES,
    DecodedInput,
    DecodeJob,
    Failure,
)
from service.decoding.sandbox import Sandbox
from service.settings import DecodingSettings, ImageSettings

_STOPPED_STATES = {"T", "t", "Z", "X"}  # stopped, traced, zombie, dead (proc_pid_stat(5))
_TEST_SIDE_PX = 1024  # of the test image; takes as much memory as a small photograph
_TEST_INPUT = Preprocessing(size=32)
_ATTEMPTS = 2
_SPARE, _MAX_SPARE = 1, 8
"""Workers beyond those that decode at once: unused ones, or those of recent clients.

The pool starts with the first number, so that another client need not wait for a fork. Each has
6 MB of its own.
"""
_RESTART_DELAY_S = 1.0
_RETRY_AFTER_S = 1.0
_CPU_CLOCK = 2  # of a whole process, by the scheduler
_RECEIVE_BYTES = 2**20  # larger than the result for an input of 224 pixels
_STOP_CHECK_INTERVAL_S = 1.0
_TEST_INTERVAL_S = 10.0
_Result = TypeVar("_Result")
logger = logging.getLogger(__name__)


class _LossCause(Enum):
    """Why a process was lost with an image; the outcome of its job."""

    CPU_TIME = auto()  # the image exceeded its budget
    TIME = auto()  # no result within the time limit, with CPU time to spare
    CRASH = auto()  # of the decoder, possibly because of the image; or it sent no valid message
    KILLED = auto()  # or stopped, from outside


_FINAL_CAUSES = {_LossCause.CPU_TIME, _LossCause.TIME}
_CAUSES: dict[int, _LossCause] = {
    signal.SIGPROF: _LossCause.CPU_TIME,
    signal.SIGALRM: _LossCause.TIME,
    **dict.fromkeys((signal.SIGKILL, signal.SIGTERM, signal.SIGINT), _LossCause.KILLED),
}
"""By the signal that ended the process; CRASH for all others, and for an exit without a signal: a
process in its sandbox cannot send one.
"""


_DecodeOutcome = DecodedInput | Failure | _LossCause


class _DecodingProcess:
    """A decoder process; it runs one job at a time.

    The constructor returns when the process is ready; it raises RuntimeError, and OSError if the
    system cannot start a process. It and `end` may block. `run` is for use in one event loop.

    Attributes:
        client: Whose images it decodes; None before the first one.
        sandbox: What restricts the process.
        exit_code: The negative number of the signal that ended the process; None before `end`.
    """

    def __init__(
        self, limits: ImageSettings, settings: DecodingSettings, forks: ForkServer
    ) -> None:
        self.client: str | None = None
        self._settings = settings
        self._buffer = bytearray(_RECEIVE_BYTES)  # reused, which saves page faults
        self._ending = threading.Lock()
        self.exit_code: int | None = None
        request = {"images": limits.model_dump(), "decoding": settings.model_dump()}
        fork = forks.fork(json.dumps(request).encode())
        self.pid, self._socket, self._exit_status = fork.pid, fork.connection, fork.exit_status
        self._socket.settimeout(START_TIMEOUT_S)
        try:
            header = HEADER.unpack(self._socket.recv(HEADER.size, socket.MSG_WAITALL))
            report = self._socket.recv(min(header[0], MAX_FIELDS_BYTES), socket.MSG_WAITALL)
            self.sandbox = Sandbox(**json.loads(report))
        except (OSError, ValueError, struct.error):
            self.end()
            raise RuntimeError("a decoder process did not start") from None
        self._socket.setblocking(False)

    @property
    def is_usable(self) -> bool:
        """False if the process has ended, or was stopped by a signal and does not run."""
        if self._socket.fileno() < 0:
            return False
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:  # it has ended, or /proc shows only what may be traced (hidepid)
            return not self.has_ended
        return status.rpartition(")")[2].split()[0] not in _STOPPED_STATES

    @property
    def has_ended(self) -> bool:
        """True if the process has ended; unlike `is_usable`, takes a few microseconds."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:  # the socket is closed or reset
            return True

    async def run(self, job: DecodeJob) -> tuple[_DecodeOutcome, float]:
        """Runs a job: its outcome, and the CPU seconds that it took, or an upper bound.

        After a _LossCause, the process has ended.
        """
        started_at, started_at_cpu_s = time.monotonic(), self._cpu_s()
        outcome: _DecodeOutcome = _LossCause.TIME
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(self._socket, job.message())
                outcome = await self._receive(job)
        except TimeoutError:
            pass
        except ValueError:  # its text has values of the message
            logger.error("decoder process %s sent no valid message", self.pid)
            outcome = _LossCause.CRASH
        except (EOFError, OSError):  # the process has ended
            await asyncio.to_thread(self.end)
            outcome = _CAUSES.get(-(self.exit_code or 0), _LossCause.CRASH)
        if isinstance(outcome, DecodedInput):
            outcome = replace(outcome, decode_s=time.monotonic() - started_at)
        cpu_s = self._cpu_s() - started_at_cpu_s  # NaN if the process has ended
        if math.isnan(cpu_s):
            budget_s = self._settings.cpu_budget_s(len(job.content))
            cpu_s = min(time.monotonic() - started_at, budget_s)
        # After out of memory, the heap of the process is fragmented.
        is_out_of_memory = isinstance(outcome, Failure) and outcome.kind == "out_of_memory"
        if isinstance(outcome, _LossCause) or is_out_of_memory:
            await asyncio.to_thread(self.end)
        return outcome, cpu_s

    async def _receive(self, job: DecodeJob) -> DecodedInput | Failure:
        """Receives the result of a job.

        Raises:
            EOFError: If the process ends before.
            ValueError: For what is not the message of a result of this job.
        """
        loop = asyncio.get_running_loop()
        end, size = 0, HEADER.size
        while end < size:
            received = await loop.sock_recv_into(self._socket, memoryview(self._buffer)[end:])
            if not received:
                raise EOFError
            end += received
            if size == HEADER.size <= end:
                size = job.result_bytes(memoryview(self._buffer)[: HEADER.size])
                if size > len(self._buffer):
                    self._buffer = self._buffer + bytes(size - len(self._buffer))
        if end > size:
            raise ValueError("expected one message, got more")
        return job.result(memoryview(self._buffer)[:size])

    def _cpu_s(self) -> float:
        """The CPU seconds of the process, by its clock in the kernel; NaN without one."""
        try:
            return time.clock_gettime(~self.pid << 3 | _CPU_CLOCK)  # as clock_getcpuclockid(3)
        except OSError:
            return math.nan

    def kill(self) -> None:
        """Kills the process; a `run` then returns a _LossCause."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kills the process and waits until it has ended; no `run` may be waiting for it."""
        with self._ending:
            if self.exit_code is not None:
                return
            self.kill()
            status = self._exit_status.recv(NUMBER.size)  # none if the fork server has ended
            self.exit_code = NUMBER.unpack(status)[0] if status else -signal.SIGKILL
            self._exit_status.close()
            self._socket.close()


def _test_image(limits: ImageSettings) -> bytes:
    """A PNG of about a megapixel, or of the largest size within the limits."""
    largest = min(_TEST_SIDE_PX, limits.max_side, math.isqrt(limits.max_pixels))
    side = max(limits.min_side, largest)
    gray = Image.linear_gradient("L").resize((side, side))
    file = BytesIO()
    Image.merge("RGB", (gray, gray.rotate(90), gray.rotate(180))).save(
        file, "PNG", compress_level=1
    )
    return file.getvalue()


class DecoderPool:
    """A fixed number of decoder processes (the workers), used from one event loop.

    An image waits for an idle worker. A worker decodes the images of one client only: foreign code
    that an image brings in sees no image of another. A worker that was lost or stopped, or whose
    client has changed, is replaced. While no other image is decoded, a test image is.

    Args:
        require_sandbox: Start no decoder that the kernel restricts only in part.
        forks: From which decoders are forked.
    """

    def __init__(
        self,
        limits: ImageSettings,
        settings: DecodingSettings,
        *,
        require_sandbox: bool = False,
        forks: ForkServer = FORK_SERVER,
    ) -> None:
        self._limits = limits
        self._settings = settings
        self._require_sandbox = require_sandbox
        self._forks = forks
        self.sandbox = Sandbox()  # of the workers; the same for all
        self._running = False
        self._start: asyncio.Task[None] | None = None
        self._workers: set[_DecodingProcess] = set()
        self._idle: list[_DecodingProcess] = []
        self._idled = asyncio.Event()
        self._renewing = 0
        self._permits = asyncio.Semaphore(settings.decoders)
        self._threads = ThreadPoolExecutor(settings.decoders, "decoder")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._decoded = 0
        self._passed_test = False

    async def start(self) -> None:
        """Starts the workers and decodes a test image; takes seconds.

        A second call waits for the first one.

        Raises:
            SettingsError: If the sandbox is required and the kernel does not offer all of it.
        """
        if self._start is None:
            self._start = self._in_background(self._start_workers())
        await asyncio.shield(self._start)

    async def _start_workers(self) -> None:
        self._running = True
        count = self._settings.decoders + _SPARE
        await asyncio.gather(*(self._add_worker() for _ in range(count)))
        level = logging.WARNING if self.sandbox.missing else logging.INFO
        logger.log(level, "decoders: %s", self.sandbox)
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

    @property
    def is_working(self) -> bool:
        """True if a worker can run and the last test image was decoded."""
        return (
            self._running
            and self._passed_test
            and any(worker.is_usable for worker in tuple(self._workers))
        )

    async def decode(
        self,
        job: DecodeJob,
        on_cpu_s: Callable[[float], None] = lambda _: None,
        *,
        client: str = "",
    ) -> DecodedInput:
        """Decodes an image.

        If the caller is cancelled while the image waits, it is not decoded. The problems of
        `decode.decode` are raised too.

        Args:
            job: Decoded by the next free worker process.
            on_cpu_s: Called with the CPU seconds of every attempt, also if it fails or the caller
                has left.
            client: Whose image it is.

        Raises:
            UnusableImage: For an image that exceeds the limits on CPU time or memory or that
                crashes its decoder twice.
            NotReady: If decoders fail for another reason.
        """
        if not (self._running and self._passed_test):
            raise NotReady("the image decoder does not work", _RETRY_AFTER_S)
        return await self._decode(job, client, on_cpu_s)

    async def _decode(
        self,
        job: DecodeJob,
        client: str | None,
        on_cpu_s: Callable[[float], None] = lambda _: None,
    ) -> DecodedInput:
        """As `decode`. `client`: None for an image of the service itself."""
        attempts = 0
        while True:
            attempts += 1
            worker = await self._worker_for(client)
            outcome = await asyncio.shield(self._in_background(self._run(worker, job, on_cpu_s)))
            if isinstance(outcome, DecodedInput):
                return outcome
            if isinstance(outcome, Failure):
                raise outcome.error
            if outcome in _FINAL_CAUSES or attempts == _ATTEMPTS:
                raise _problem_of(outcome)

    async def _worker_for(self, client: str | None) -> _DecodingProcess:
        """Waits for a permit, which `_run` returns, and for a worker of no other client."""
        await self._permits.acquire()
        try:
            while (worker := self._chosen(client)) is None:
                self._idled.clear()
                await self._idled.wait()
        except BaseException:
            self._permits.release()
            raise
        return worker

    def _chosen(self, client: str | None) -> _DecodingProcess | None:
        """Takes an idle worker of a client, or an unused one; None if there is neither.

        If it takes the last unused one, or there is none, a fresh one is started; beyond
        `_MAX_SPARE`, it replaces that of another client that was idle for longest. `client`: None
        for any worker.
        """
        idle = self._idle
        for worker in [worker for worker in idle if worker.has_ended]:
            idle.remove(worker)
            self._replace(worker)
        own = [worker for worker in idle if client in (None, worker.client)]
        unused = [worker for worker in idle if worker.client is None]
        foreign = [worker for worker in idle if worker not in own + unused]
        if foreign and not own and len(unused) <= 1 and not self._renewing:
            can_grow = len(self._workers) < self._settings.decoders + _MAX_SPARE
            replaced = None if can_grow else foreign[0]
            if replaced is not None:
                idle.remove(replaced)
            self._renewing += 1
            self._in_background(self._renew(replaced))
        for worker in (own or unused)[:1]:
            idle.remove(worker)
            worker.client = worker.client if client is None else client
            return worker
        return None

    async def _renew(self, replaced: _DecodingProcess | None) -> None:
        """Starts a worker that has decoded nothing, perhaps in place of an idle one."""
        try:
            await self._add_worker()
        except (RuntimeError, OSError) as error:
            if replaced is not None:
                self._replace(replaced)  # which tries again
                return
            logger.error("cannot start a decoder process: %s", error)
            await asyncio.sleep(_RESTART_DELAY_S)
        finally:
            self._renewing -= 1
            self._idled.set()  # a waiting image looks again
        if replaced is not None:
            await self._in_thread(replaced.end)
            self._workers.discard(replaced)

    def _set_idle(self, worker: _DecodingProcess) -> None:
        self._idle.append(worker)
        self._idled.set()

    async def _run(
        self, worker: _DecodingProcess, job: DecodeJob, on_cpu_s: Callable[[float], None]
    ) -> _DecodeOutcome:
        try:
            outcome, cpu_s = await worker.run(job)
            on_cpu_s(cpu_s)
            self._decoded += isinstance(outcome, DecodedInput)
            self._return(worker, not worker.has_ended)
        finally:
            self._permits.release()
        return outcome

    def _return(self, worker: _DecodingProcess, is_usable: bool) -> None:
        if is_usable:
            self._set_idle(worker)
        else:
            self._replace(worker)

    def _replace(self, lost: _DecodingProcess) -> None:
        if self._running:
            self._in_background(self._replacement(lost))

    async def _replacement(self, lost: _DecodingProcess) -> None:
        """Starts a worker in place of a lost one; tries again until it succeeds."""
        await self._in_thread(lost.end)
        self._workers.discard(lost)
        logger.warning("replacing decoder process %s: exit code %s", lost.pid, lost.exit_code)
        while True:
            try:
                return await self._add_worker()
            except (RuntimeError, OSError) as error:
                logger.error("cannot start a decoder process: %s", error)
                await asyncio.sleep(_RESTART_DELAY_S)

    async def _add_worker(self) -> None:
        worker = await self._in_thread(self._started_worker)
        self._set_idle(worker)

    def _started_worker(self) -> _DecodingProcess:
        worker = _DecodingProcess(self._limits, self._settings, self._forks)
        if self._require_sandbox and worker.sandbox.missing:
            worker.end()
            raise SettingsError(f"--require-sandbox: decoders: {worker.sandbox}")
        self._workers.add(worker)
        self.sandbox = worker.sandbox
        return worker

    async def _replace_stopped_forever(self) -> None:
        while True:
            await asyncio.sleep(_STOP_CHECK_INTERVAL_S)
            for worker in tuple(self._workers):
                if not worker.is_usable:
                    worker.kill()  # its `run` then returns, and it is replaced
            for worker in [worker for worker in self._idle if not worker.is_usable]:
                self._idle.remove(worker)
                self._replace(worker)

    async def _test_forever(self) -> None:
        """Decodes the test image after each interval in which no image was decoded."""
        while True:
            decoded = self._decoded
            await asyncio.sleep(_TEST_INTERVAL_S)
            if self._decoded == decoded:
                await self._test()

    async def _test(self) -> None:
        """Decodes the test image and logs a change of the result.

        It passes if any image was decoded meanwhile.
        """
        job = DecodeJob(_test_image(self._limits), Declared(), _TEST_INPUT, "")
        decoded, fault = self._decoded, ""
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await self._decode(job, None)
        except TimeoutError:
            fault = "no result in time"
        except Problem as problem:
            fault = problem.detail
        had_passed, self._passed_test = self._passed_test, self._decoded > decoded
        if not self._passed_test:
            logger.error("the image decoder does not work: %s", fault)
        elif not had_passed:
            logger.info("the image decoder works")

    def _in_thread(self, work: Callable[[], _Result]) -> "asyncio.Future[_Result]":
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _in_background(self, work: Coroutine[Any, Any, _Result]) -> "asyncio.Task[_Result]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _problem_of(cause: _LossCause) -> Problem:
    if cause is _LossCause.CPU_TIME:
        return UnusableImage("decoding the image takes too much CPU time")
    if cause is _LossCause.CRASH:
        return UnusableImage("the decoder failed twice on this image")
    if cause is _LossCause.TIME:
        return NotReady("the image decoder did not answer in time", _RETRY_AFTER_S)
    return NotReady("the image decoder was stopped while it decoded", _RETRY_AFTER_S)

"""One decoder process, driven by the event loop without a thread.

The process is forked by multiprocessing's fork server, which has imported only the decoder, and
never by the service's process with its threads and its device.
"""

import asyncio
import multiprocessing
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from service.decoding import worker
from service.decoding.messages import MessageReader, receive
from service.decoding.worker import (
    READY,
    DecodeFailure,
    DecodeJob,
    DecodeResult,
    OutOfDecodingMemoryError,
    result_from_message,
)
from service.settings import DecodingSettings, ImageLimits

START_TIMEOUT_S = 120.0  # the first start imports torch, possibly from a slow disk
STOPPED_STATES = {"T", "t", "Z", "X"}  # stopped, traced, zombie, dead (proc_pid_stat(5))
CRASHES = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGABRT,
}


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
        limits: ImageLimits,
        settings: DecodingSettings,
        on_outcome: Callable[["DecodingProcess", DecodeOutcome], None],
        on_loss: Callable[["DecodingProcess", str], None],
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([worker.__name__])
        self._settings = settings
        self._on_outcome = on_outcome
        self._on_loss = on_loss
        self._loop: asyncio.AbstractEventLoop | None = None  # None after a loss
        self._reader: MessageReader | None = None  # set while the process has an image
        self._connection, remote = socket.socketpair()
        self._process = context.Process(
            target=worker.run_worker, args=(remote, limits, settings), name="decoding"
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

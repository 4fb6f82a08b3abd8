"""One decoder process, driven by the event loop without a thread.

The process is forked by multiprocessing's fork server, which has imported only the decoder, and
never by the service's process with its threads and its device.
"""

import asyncio
import multiprocessing
import socket
from collections.abc import Callable

from service.decoding import worker
from service.decoding.messages import MessageReader, receive
from service.decoding.worker import (
    READY,
    DecodeJob,
    DecodeResult,
    OutOfDecodingMemoryError,
    result_from_message,
)
from service.settings import DecodingSettings, ImageLimits

START_TIMEOUT_S = 120.0  # the first start imports torch, possibly from a slow disk


class WorkerLostError(Exception):
    """The process hung, died or ran out of memory, and cannot be used again."""


DecodeOutcome = DecodeResult | Exception


class DecodingProcess:
    """A decoder process and its socket; it decodes one image at a time.

    The constructor blocks until the process is ready; call it outside of the event loop.
    on_result: called in the loop with the outcome of every image, even if its caller has left;
    after a WorkerLostError there are no more calls.
    """

    def __init__(
        self,
        limits: ImageLimits,
        settings: DecodingSettings,
        on_result: Callable[["DecodingProcess", DecodeOutcome], None],
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([worker.__name__])
        self._timeout_s = settings.timeout_s
        self._on_result = on_result
        self._loop: asyncio.AbstractEventLoop | None = None  # set by the first image
        self._reader: MessageReader | None = None  # set while the process has an image
        self._connection, remote = socket.socketpair()
        self._process = context.Process(
            target=worker.run_worker,
            args=(remote, limits, settings.memory_bytes, 2 * settings.timeout_s),
            name="decoding",
        )
        self._process.start()
        remote.close()
        self._await_ready()

    def _await_ready(self) -> None:
        self._connection.settimeout(START_TIMEOUT_S)
        try:
            assert receive(self._connection) == READY
        except (EOFError, OSError) as error:
            self.end()
            raise RuntimeError("a decoder process did not start") from error
        self._connection.setblocking(False)

    @property
    def pid(self) -> int | None:
        """The process id."""
        return self._process.pid

    def submit(self, job: DecodeJob) -> "asyncio.Future[DecodeOutcome]":
        """Returns a future of the outcome of a job. Raises OSError if the process has ended.

        Cancelling the future does not interrupt the process.
        """
        unsent = job.to_message().send_some(self._connection)
        loop = self._loop or self._start_reading()
        self._unsent, self._reader = unsent, MessageReader(job.pixel_bytes)
        self._outcome = outcome = loop.create_future()
        self._timer = loop.call_later(
            self._timeout_s, self._finish, WorkerLostError("decoding the image took too long")
        )
        if unsent:
            loop.add_writer(self._connection, self._write)
        return outcome

    def _start_reading(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._connection, self._read)
        return self._loop

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[self._connection.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = memoryview(b"")  # `_read` handles the lost connection
        if not self._unsent and self._loop is not None:
            self._loop.remove_writer(self._connection)

    def _read(self) -> None:
        if self._reader is None:  # the idle process ended; the next `submit` raises OSError
            self._stop_reading()
            return
        try:
            message = self._reader.read(self._connection)
        except (EOFError, OSError):
            self._finish(WorkerLostError("the decoder failed on this image"))
            return
        if message is not None:
            outcome = result_from_message(message)
            is_lost = isinstance(outcome, OutOfDecodingMemoryError)  # its heap is fragmented
            self._finish(WorkerLostError(str(outcome)) if is_lost else outcome)

    def _finish(self, outcome: DecodeOutcome) -> None:
        self._reader = None
        self._timer.cancel()
        if isinstance(outcome, WorkerLostError):
            self._stop_reading()
        if not self._outcome.done():
            self._outcome.set_result(outcome)
        self._on_result(self, outcome)

    def _stop_reading(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._connection)
            loop.remove_writer(self._connection)

    def end(self) -> None:
        """Kills the process; no caller may still wait for a result."""
        if self._reader is not None:
            self._timer.cancel()
        self._stop_reading()
        self._connection.close()
        self._process.kill()
        self._process.join()

"""One decoding process, driven by the event loop: no thread waits for its answers.

It is forked by a server of its own (`forkserver`) that has only imported the decoder: never from
this process, with its threads and its device.
"""

import asyncio
import multiprocessing
import socket
from collections.abc import Callable

from service.decoding import worker as decoding_worker
from service.decoding.messages import Incoming, received
from service.decoding.worker import READY, Done, Job, OutOfDecodingMemoryError, answer_of
from service.settings import DecodingSettings, ImageLimits

START_TIMEOUT_S = 120.0  # the first one waits while torch is imported, perhaps from a cold disk


class LostError(Exception):
    """The process hung, died or ran out of memory; it is of no more use."""


Outcome = Done | Exception


class DecodingProcess:
    """A process and our end of the socket to it; it decodes one image at a time.

    Made outside of the event loop, for it returns when the process is ready. ended: told, in the
    loop, of every image's outcome, whether anybody still waits for it or not; a LostError is the
    last one.
    """

    def __init__(
        self,
        limits: ImageLimits,
        settings: DecodingSettings,
        ended: Callable[["DecodingProcess", Outcome], None],
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([decoding_worker.__name__])
        self._timeout_s = settings.timeout_s
        self._ended = ended
        self._loop: asyncio.AbstractEventLoop | None = None  # from its first image on
        self._incoming: Incoming | None = None  # while it has an image
        self._connection, theirs = socket.socketpair()
        self._process = context.Process(
            target=decoding_worker.work,
            args=(theirs, limits, settings.memory_bytes, 2 * settings.timeout_s),
            name="decoding",
        )
        self._process.start()
        theirs.close()
        self._await_ready()

    def _await_ready(self) -> None:
        self._connection.settimeout(START_TIMEOUT_S)
        try:
            assert received(self._connection) == READY
        except (EOFError, OSError) as error:
            self.end()
            raise RuntimeError("a decoding process did not start") from error
        self._connection.setblocking(False)

    @property
    def pid(self) -> int | None:
        """The process's id."""
        return self._process.pid

    def ask(self, job: Job) -> "asyncio.Future[Outcome]":
        """What becomes of an image. Raises OSError where the process had already ended.

        Cancelling the future changes nothing for the process, which ends its work.
        """
        unsent = job.message().send_some(self._connection)
        loop = self._loop or self._listen()
        self._unsent, self._incoming = unsent, Incoming(expected=job.pixel_bytes)
        self._outcome = outcome = loop.create_future()
        self._timer = loop.call_later(
            self._timeout_s, self._settle, LostError("decoding the image took too long")
        )
        if unsent:
            loop.add_writer(self._connection, self._write)
        return outcome

    def _listen(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._connection, self._read)
        return self._loop

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[self._connection.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = memoryview(b"")  # what has become of it is told by reading
        if not self._unsent and self._loop is not None:
            self._loop.remove_writer(self._connection)

    def _read(self) -> None:
        if self._incoming is None:  # it ended while it was idle, as whoever asks it next will find
            self._listen_no_more()
            return
        try:
            message = self._incoming.read(self._connection)
        except (EOFError, OSError):
            self._settle(LostError("the decoder failed on this image"))
            return
        if message is not None:
            answer = answer_of(message)
            lost = isinstance(answer, OutOfDecodingMemoryError)  # what it has left is in pieces
            self._settle(LostError(str(answer)) if lost else answer)

    def _settle(self, outcome: Outcome) -> None:
        self._incoming = None
        self._timer.cancel()
        if isinstance(outcome, LostError):
            self._listen_no_more()
        if not self._outcome.done():
            self._outcome.set_result(outcome)
        self._ended(self, outcome)

    def _listen_no_more(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._connection)
            loop.remove_writer(self._connection)

    def end(self) -> None:
        """Ends the process, whatever it does; nobody may still wait for it."""
        if self._incoming is not None:
            self._timer.cancel()
        self._listen_no_more()
        self._connection.close()
        self._process.kill()
        self._process.join()

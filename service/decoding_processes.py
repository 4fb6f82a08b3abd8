"""Images decoded in worker processes: one that hangs or kills its decoder costs one request.

Each worker has its own pipe and at most one image; its thread here waits for it. Workers are forked
by a server of their own (`forkserver`) that has only imported the decoder: never from this process,
with its threads and its device.
"""

import asyncio
import atexit
import logging
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from service import decoding_worker
from service.client.quality import Quality
from service.decode import Declared
from service.decoding_worker import Done, Job, OutOfDecodingMemoryError
from service.errors import NotReady, UnusableImage
from service.settings import DecodingSettings, ImageLimits

START_TIMEOUT_S = 120.0  # the first one waits while torch is imported, perhaps from a cold disk
END_TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decoded:
    """A decoded image, ready for the network.

    pixels: (3, size, size) float32 in [0, 1]. content_seed: of the whole picture and the model's
    revision. warnings: in words for a user. decode_s: seconds that decoding and resizing took.
    quality: of the whole picture, where it was wanted.
    """

    pixels: Tensor
    content_seed: int
    warnings: tuple[str, ...]
    decode_s: float
    quality: Quality | None = None


class Decoder:
    """A fixed number of worker processes; each that is lost is replaced when it is next needed."""

    def __init__(self, limits: ImageLimits, settings: DecodingSettings) -> None:
        self._limits = limits
        self._settings = settings
        self._idle: list[_Worker | None] = []  # None: to be started
        self._threads: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Starts the workers; returns when all are ready, which takes seconds."""
        atexit.register(self.close)  # or multiprocessing would wait for the workers for ever
        self._idle = [self._at_work(None) for _ in range(self._settings.workers)]
        self._threads = ThreadPoolExecutor(self._settings.workers, "decoding")

    def close(self) -> None:
        """Drops what has not begun, waits for what has, and ends the workers."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(cancel_futures=True)
        for worker in filter(None, self._idle):
            worker.end()
        self._idle = []
        atexit.unregister(self.close)

    async def decode(
        self,
        content: bytes,
        declared: Declared,
        size: int,
        revision: str,
        measured: bool = False,
    ) -> Decoded:
        """The image in `content`, `size` pixels a side.

        declared: what the client says it is. revision: of the model that it is for. measured:
        whether the picture's quality is wanted, too. Raises what
        `service.decode.decode` does, and UnusableImage for an image whose decoder takes too long,
        takes too much memory or dies. An image whose caller is cancelled while it waits is not
        decoded.
        """
        if self._threads is None:
            raise NotReady("the service is not decoding images")
        job = Job(content, declared, size, revision, measured)
        loop = asyncio.get_running_loop()
        done = await loop.run_in_executor(self._threads, self._perform, job)
        pixels = torch.from_numpy(done.pixels)
        return Decoded(pixels, done.content_seed, done.warnings, done.decode_s, done.quality)

    def _perform(self, job: Job) -> Done:
        """There are as many threads as workers, so that one is always idle here."""
        worker = self._idle.pop()
        try:
            worker = self._at_work(worker)
            answer = worker.answer(job, self._settings.timeout_s)
        except _LostError as error:
            worker = None
            raise UnusableImage(str(error)) from error
        finally:
            self._idle.append(worker)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _at_work(self, worker: "_Worker | None") -> "_Worker":
        """The worker, or another in the place of one that is gone."""
        if worker is not None and not worker.is_gone():
            return worker
        return _Worker(self._limits, self._settings)


class _LostError(Exception):
    """The worker did not answer; it is no more."""


class _Worker:
    """A process and our end of its pipe."""

    def __init__(self, limits: ImageLimits, settings: DecodingSettings) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([decoding_worker.__name__])
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=decoding_worker.work,
            args=(theirs, limits, settings.memory_bytes, 2 * settings.timeout_s),
            name="decoding",
        )
        self._process.start()
        theirs.close()
        if not self._connection.poll(START_TIMEOUT_S) or self._connection.recv() != "ready":
            self._kill()
            raise RuntimeError("a decoding process did not start")

    def is_gone(self) -> bool:
        """Whether the process has ended: it closed its end, for an idle one says nothing."""
        gone = self._connection.poll()
        if gone:
            self._kill()
        return gone

    def answer(self, job: Job, timeout_s: float) -> Done | Exception:
        """What the process answers. Raises _LostError, and ends it, where it hangs, dies or
        has no memory left."""
        try:
            self._connection.send(job)
            if self._connection.poll(timeout_s):
                answer: Done | Exception = self._connection.recv()
                if not isinstance(answer, OutOfDecodingMemoryError):
                    return answer
                fault = str(answer)  # what is left of its memory may be in pieces
            else:
                fault = "decoding the image took too long"
        except (EOFError, OSError):
            fault = "the decoder failed on this image"
        logger.warning("process %s: %s; another takes its place", self._process.pid, fault)
        self._kill()
        raise _LostError(fault)

    def end(self) -> None:
        """Ends the process, which is idle."""
        self._connection.close()
        self._process.join(END_TIMEOUT_S)
        self._kill()

    def _kill(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join()

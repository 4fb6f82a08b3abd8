"""Images decoded in worker processes: one that hangs or kills its decoder costs one request.

Each worker has its own socket and at most one image.
"""

import asyncio
import atexit
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from eulerlora_client.contract.problems import NotReady, UnusableImage
from eulerlora_client.contract.triage import ImageQuality
from service.decoding.decode import Declared
from service.decoding.process import DecodingProcess, LostError, Outcome
from service.decoding.worker import Job
from service.settings import DecodingSettings, ImageLimits

START_AGAIN_S = 1.0

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
    quality: ImageQuality | None = None


class Decoder:
    """A fixed number of worker processes, in one event loop; each that is lost is replaced.

    An image waits for an idle worker; a lost one is none until another has taken its place.
    """

    def __init__(self, limits: ImageLimits, settings: DecodingSettings) -> None:
        self._limits = limits
        self._settings = settings
        self._running = False
        self._workers: set[DecodingProcess] = set()
        self._idle: list[DecodingProcess] = []
        self._free = asyncio.Semaphore(0)  # as many as are idle
        self._starting = ThreadPoolExecutor(settings.workers, "decoder-start")

    def start(self) -> None:
        """Starts the workers; returns when all are ready, which takes seconds."""
        atexit.register(self.close)  # or multiprocessing would wait for the workers for ever
        self._idle = [self._worker() for _ in range(self._settings.workers)]
        self._free = asyncio.Semaphore(self._settings.workers)
        self._running = True

    def close(self) -> None:
        """Ends the workers, whatever they do; nobody may be waiting for them any more."""
        self._running = False
        self._starting.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._idle.clear()
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
        whether the picture's quality is wanted, too. Raises what `decode` does,
        and UnusableImage for an image whose decoder takes too long, takes too much memory or
        dies. An image whose caller is cancelled while it waits is not decoded.
        """
        if not self._running:
            raise NotReady("the service is not decoding images")
        outcome = await (await self._asked(Job(content, declared, size, revision, measured)))
        if isinstance(outcome, LostError):
            raise UnusableImage(str(outcome)) from outcome
        if isinstance(outcome, Exception):
            raise outcome
        pixels = torch.from_numpy(outcome.pixels)
        return Decoded(
            pixels, outcome.content_seed, outcome.warnings, outcome.decode_s, outcome.quality
        )

    async def _asked(self, job: Job) -> "asyncio.Future[Outcome]":
        """What becomes of the job, once a worker has it."""
        while True:
            await self._free.acquire()
            worker = self._idle.pop()
            try:
                return worker.ask(job)
            except OSError:
                self._replace(worker, "it ended while it was idle")

    def _ended(self, worker: DecodingProcess, outcome: Outcome) -> None:
        if isinstance(outcome, LostError):
            self._replace(worker, str(outcome))
        else:
            self._idle.append(worker)
            self._free.release()

    def _replace(self, lost: DecodingProcess, fault: str) -> None:
        if self._running:
            logger.warning("process %s: %s; another takes its place", lost.pid, fault)
            self._start(lost)

    def _start(self, lost: DecodingProcess | None = None) -> None:
        if self._running:
            loop = asyncio.get_running_loop()
            starting = loop.run_in_executor(self._starting, self._successor, lost)
            starting.add_done_callback(self._started)

    def _successor(self, lost: DecodingProcess | None) -> DecodingProcess:
        if lost is not None:
            lost.end()
            self._workers.discard(lost)
        return self._worker()

    def _started(self, starting: "asyncio.Future[DecodingProcess]") -> None:
        if starting.cancelled():
            return
        if error := starting.exception():
            logger.error("no decoding process could be started: %s", error)
            asyncio.get_running_loop().call_later(START_AGAIN_S, self._start)
        else:
            self._idle.append(starting.result())
            self._free.release()

    def _worker(self) -> DecodingProcess:
        worker = DecodingProcess(self._limits, self._settings, self._ended)
        self._workers.add(worker)
        return worker

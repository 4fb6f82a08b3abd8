"""A pool of decoder processes: an image that hangs or kills its decoder fails only its own request.

Every worker has a socket and decodes at most one image at a time.
"""

import asyncio
import atexit
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from eulerlora_client.contract.predictions import PredictionWarning
from eulerlora_client.contract.problems import NotReady, UnusableImage
from eulerlora_client.contract.triage import ImageQuality
from service.decoding.decode import Declared
from service.decoding.process import DecodeOutcome, DecodingProcess, WorkerLostError
from service.decoding.worker import DecodeJob
from service.settings import DecodingSettings, ImageLimits

RESTART_DELAY_S = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decoded:
    """A decoded image as the network's input.

    pixels: (3, size, size) float32 in [0, 1]. content_seed: a seed derived from the whole image
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

    An image waits for an idle worker. A lost worker is replaced.
    """

    def __init__(self, limits: ImageLimits, settings: DecodingSettings) -> None:
        self._limits = limits
        self._settings = settings
        self._running = False
        self._workers: set[DecodingProcess] = set()
        self._idle: list[DecodingProcess] = []
        self._idle_count = asyncio.Semaphore(0)
        self._starters = ThreadPoolExecutor(settings.workers, "decoder-start")

    def start(self) -> None:
        """Starts the workers; blocks for seconds until all are ready."""
        atexit.register(self.close)  # otherwise multiprocessing waits for the workers at exit
        self._idle = [self._start_worker() for _ in range(self._settings.workers)]
        self._idle_count = asyncio.Semaphore(self._settings.workers)
        self._running = True

    def close(self) -> None:
        """Kills the workers; no caller may still wait for a result."""
        self._running = False
        self._starters.shutdown(cancel_futures=True)
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
        with_quality: bool = False,
    ) -> Decoded:
        """Returns the image in `content`, with `size` pixels per side.

        declared: the type that the client declared. revision: of the model, for the content seed.
        with_quality: also measure the image quality. Raises the problems of `decode.decode`,
        UnusableImage for an image that exceeds the limits on time or memory or that kills its
        decoder, and NotReady. If the caller is cancelled while the image waits, it is not decoded.
        """
        if not self._running:
            raise NotReady("the image decoder is not running")
        outcome = await (
            await self._submit(DecodeJob(content, declared, size, revision, with_quality))
        )
        if isinstance(outcome, WorkerLostError):
            raise UnusableImage(str(outcome)) from outcome
        if isinstance(outcome, Exception):
            raise outcome
        return Decoded(
            torch.from_numpy(outcome.pixels),
            outcome.content_seed,
            outcome.warnings,
            outcome.decode_s,
            outcome.quality,
        )

    async def _submit(self, job: DecodeJob) -> "asyncio.Future[DecodeOutcome]":
        """Waits for an idle worker, submits the job and returns the future of its outcome."""
        while True:
            await self._idle_count.acquire()
            worker = self._idle.pop()
            try:
                return worker.submit(job)
            except OSError:
                self._replace(worker, "it ended while idle")

    def _on_result(self, worker: DecodingProcess, outcome: DecodeOutcome) -> None:
        if isinstance(outcome, WorkerLostError):
            self._replace(worker, str(outcome))
        else:
            self._add_idle(worker)

    def _add_idle(self, worker: DecodingProcess) -> None:
        self._idle.append(worker)
        self._idle_count.release()

    def _replace(self, lost: DecodingProcess, reason: str) -> None:
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
        if start.cancelled():
            return
        if error := start.exception():
            logger.error("cannot start a decoder process: %s", error)
            asyncio.get_running_loop().call_later(RESTART_DELAY_S, self._start_replacement)
        else:
            self._add_idle(start.result())

    def _start_worker(self) -> DecodingProcess:
        worker = DecodingProcess(self._limits, self._settings, self._on_result)
        self._workers.add(worker)
        return worker

"""A pool of decoder processes: an image that hangs or kills its decoder fails only its own request.

Every worker has a socket and decodes at most one image at a time.
"""

import asyncio
import atexit
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from eulerlora.settings import Preprocessing
from eulerlora_client.contract.answers import ImageQuality, PredictionWarning
from eulerlora_client.contract.problems import NotReady, Problem, UnusableImage
from service.decoding.decode import Declared
from service.decoding.process import DecodeOutcome, DecodingProcess, LossCause, WorkerLoss
from service.decoding.self_test import SelfTest
from service.decoding.worker import DecodeFailure, DecodeJob, DecodeResult
from service.settings import DecodingSettings, ImageLimits

ATTEMPTS = 2
FINAL_CAUSES = {LossCause.CPU_TIME, LossCause.TIME}
RESTART_DELAY_S = 1.0
RETRY_AFTER_S = 1.0
STOP_CHECK_INTERVAL_S = 1.0
TEST_INTERVAL_S = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decoded:
    """A decoded image as the network's input.

    pixels: (3, size, size) float32 in [0, 1]. content_seed: a seed derived from the decoded image
    and the model's revision. warnings: for the user. decode_s: seconds of decoding and resizing.
    cpu_s: CPU seconds of its decoder. quality: of the whole image, None if not measured.
    """

    pixels: Tensor
    content_seed: int
    warnings: tuple[PredictionWarning, ...]
    decode_s: float
    cpu_s: float
    quality: ImageQuality | None = None


class Decoder:
    """A fixed number of worker processes, used from one event loop.

    An image waits for an idle worker. A worker that was lost or stopped is replaced.
    """

    def __init__(self, limits: ImageLimits, settings: DecodingSettings) -> None:
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
        result.cpu_s,
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

"""The worker threads that run batches from the request queue, and the cores of their passes.

A batch starts as soon as a worker is idle; items that arrive meanwhile form the next batches.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

import torch

from eulerlora.scores.trajectories import Trajectories
from eulerlora_contract.problems import ModelFailure, OutOfMemory, Problem
from service.inference.engine import DeviceFailed, InferenceItem, ServedModel
from service.inference.queue import Batch, InferenceResult, RequestQueue, Ticket
from service.settings import VARIABLE_PREFIX

logger = logging.getLogger(__name__)

_Item = TypeVar("_Item")

_MAX_WORKERS = 4  # more threads compete for the interpreter's lock
_CUDA_WORKERS = 2  # while the device computes one batch, the next one is drawn and uploaded
_CHECKS_PER_LIMIT = 10  # checks for hung passes per `max_batch_s`


def _run_with_retry(
    infer: Callable[[Sequence[_Item]], list[Trajectories]],
    items: Sequence[_Item],
    may_split: bool = True,
) -> list[Trajectories | Problem]:
    """Runs a batch: the output of `infer` or a problem for each item, in order.

    A batch that is out of memory is split in two once. A batch that fails otherwise is run again
    item by item, once. Raises DeviceFailed.
    """
    count = len(items)
    try:
        return list(infer(items))
    except DeviceFailed:
        raise
    except OutOfMemory as problem:
        logger.warning("out of memory for a batch of %d items", count)
        if count == 1 or not may_split:
            return [OutOfMemory(problem.detail) for _ in items]
        size = -(-count // 2)
    except Exception:
        logger.exception("a batch of %d items failed", count)
        if count == 1:
            return [ModelFailure("the model failed on this image")]
        size = 1
    parts = [items[start : start + size] for start in range(0, count, size)]
    return [result for part in parts for result in _run_with_retry(infer, part, may_split=False)]


def worker_count(device: torch.device, compiler: str | None) -> int:
    """The number of worker threads that should run batches at the same time.

    On a CPU, several batches with few cores each have a higher throughput than one batch with all
    cores, which must synchronise after every operation. A compiled network is specialised for one
    number of cores, and its CUDA graphs belong to one thread.
    """
    if compiler is not None:
        return 1
    if device.type != "cpu":
        return _CUDA_WORKERS
    return min(torch.get_num_threads(), _MAX_WORKERS)


class _CoreAllocation:
    """Divides the CPU's cores among the passes that run at the same time.

    Args:
        count: The number of cores, by default that of torch.
    """

    def __init__(self, count: int | None = None) -> None:
        self._count = torch.get_num_threads() if count is None else count
        self._passes = 0
        self._lock = threading.Lock()

    @contextmanager
    def allocate(self, parts: int = 1) -> Iterator[int]:
        """Sets and yields the number of cores of a pass in this thread.

        A pass gets an equal part of the cores; passes that started earlier keep their number. The
        number of threads of torch is a setting of the calling thread.

        Args:
            parts: The number of passes to expect; each of them gets an equal part.
        """
        with self._lock:
            self._passes += 1
            cores = max(1, self._count // max(parts, self._passes))
        if cores != torch.get_num_threads():
            torch.set_num_threads(cores)
        try:
            yield cores
        finally:
            with self._lock:
                self._passes -= 1


class InferenceWorkers:
    """Threads that run the batches of a queue.

    `on_batch` and `on_fatal` are called from the threads and must not wait for them.

    Args:
        max_batch_s: A pass that takes longer means a lost device.
        on_batch: Called after every batch, with its seconds.
        on_fatal: Called once if the device is lost; no batch runs after that, and every item gets
            NotReady.
        workers: The number of batches that run at the same time.

    Attributes:
        last_result_at: Of a pass, on the monotonic clock; 0 before the first.
    """

    def __init__(
        self,
        queue: RequestQueue,
        max_batch_s: float,
        on_batch: Callable[[Batch, float], None],
        on_fatal: Callable[[Exception], None],
        workers: int = 1,
    ) -> None:
        self.last_result_at = 0.0
        self._queue = queue
        self._max_batch_s = max_batch_s
        self._on_batch = on_batch
        self._on_fatal = on_fatal
        self._cores = _CoreAllocation()
        self._pass_started_at: dict[int, float] = {}  # by thread id
        self._active_workers = workers
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._failed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"engine-{index}", daemon=True)
            for index in range(workers)
        ]
        self._watchdog = threading.Thread(target=self._watch, name="engine-watchdog", daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the workers within the block; on exit, closes and drains the queue."""
        for thread in (*self._threads, self._watchdog):
            thread.start()
        try:
            yield
        finally:
            self._queue.close()
            self._ended.wait()
            self._watchdog.join()
            if not self._failed:  # a hung worker would never be joined
                for thread in self._threads:
                    thread.join()

    def submit(self, served: ServedModel, item: InferenceItem) -> "Future[InferenceResult]":
        """Queues an internal item, which neither the capacity nor a deadline limits.

        Cancelling the future before its batch starts removes the item.

        Raises:
            NotReady: The queue is closed.
        """
        ticket = Ticket(served, served.adapters * item.draw.count)
        self._queue.enqueue(ticket, item, deadline=math.inf)
        return ticket.future

    def _work(self) -> None:
        try:
            while batch := self._queue.next_batch():
                self._run(batch)
        except Exception as error:
            self._fail(error)
        with self._lock:
            self._active_workers -= 1
            if not self._active_workers:
                self._ended.set()

    def _run(self, batch: Batch) -> None:
        started_at = time.monotonic()
        with self._cores.allocate(len(self._threads) if batch.leaves_cores else 1):
            outputs = _run_with_retry(self._infer, batch.tickets)
        seconds = time.monotonic() - started_at
        self._queue.finish(batch)
        self._on_batch(batch, seconds)
        for ticket, output in zip(batch.tickets, outputs, strict=True):
            if isinstance(output, Problem):
                ticket.resolve(output)
            else:
                self.last_result_at = started_at + seconds
                queued_s = started_at - ticket.queued_at
                ticket.resolve(InferenceResult(output, queued_s, seconds))

    def _infer(self, tickets: Sequence[Ticket]) -> list[Trajectories]:
        thread_id = threading.get_ident()
        self._pass_started_at[thread_id] = time.monotonic()
        try:
            return tickets[0].served.infer([ticket.item for ticket in tickets])
        finally:
            del self._pass_started_at[thread_id]

    def _watch(self) -> None:
        # Counts checks: time passes while the process is suspended, as by `docker pause`.
        checks: dict[tuple[int, float], int] = {}
        while not self._ended.wait(self._max_batch_s / _CHECKS_PER_LIMIT):
            passes = self._pass_started_at.copy().items()
            checks = {running: checks.get(running, 0) + 1 for running in passes}
            if max(checks.values(), default=0) > _CHECKS_PER_LIMIT:
                limit = f"{self._max_batch_s:g} s ({VARIABLE_PREFIX}MAX_BATCH_S)"
                self._fail(DeviceFailed(f"a pass takes more than {limit}"))

    def _fail(self, error: Exception) -> None:
        with self._lock:
            is_first, self._failed = not self._failed, True
        if is_first:
            logger.critical("inference stopped: %s", error, exc_info=error)
            self._queue.abort("the device failed")
            self._ended.set()
            self._on_fatal(error)

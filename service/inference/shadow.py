"""The shadow: a checkpoint whose answers are compared with those of a served model."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from service.inference.engine import ServedModel
from service.inference.queue import RequestQueue
from service.telemetry.metrics import Metrics, ShadowResult

MAX_WAITING = 16
"""Comparisons that wait; each holds the network's input of an image."""
_POLL_S = 0.005

logger = logging.getLogger(__name__)

_Compare = Callable[[ServedModel], Mapping[str, ShadowResult]]
"""Answers with the shadow; the results of the comparison by field."""


class _BeforeOperations(TorchFunctionMode):
    """Calls a function before each operation of torch in this thread."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self._call = call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._call()
        return func(*args, **(kwargs or {}))


class Shadow:
    """Runs comparisons in a thread of its own, on one core, while no request is in progress.

    A comparison pauses before its next operation of torch when a request arrives. Comparisons above
    `MAX_WAITING` are dropped. Nothing that fails here reaches a request.

    Args:
        model: The shadow, with the name of the model that it is compared with; None before it is
            loaded.
        requests: The queue of the requests.
        metrics: Count the comparisons.
    """

    def __init__(
        self, model: Callable[[], ServedModel | None], requests: RequestQueue, metrics: Metrics
    ) -> None:
        self._model = model
        self._requests = requests
        self._metrics = metrics
        self._waiting: queue.Queue[tuple[Context, str, _Compare] | None] = queue.Queue(MAX_WAITING)
        self._closed = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the thread within the block; on exit, comparisons that wait are discarded."""
        threading.Thread(target=self._work, name="shadow", daemon=True).start()
        try:
            yield
        finally:
            self._closed.set()
            with suppress(queue.Full):
                self._waiting.put_nowait(None)  # wakes the thread

    def submit(self, name: str, compare: _Compare) -> None:
        """Queues a comparison with an answer of the model of this name; does not wait."""
        shadow = self._model()
        if shadow is not None and shadow.name == name:
            try:
                self._waiting.put_nowait((copy_context(), name, compare))
            except queue.Full:
                self._metrics.count_shadow(name, "dropped")

    def _work(self) -> None:
        while job := self._waiting.get():
            context, name, compare = job
            self._wait_until_idle()
            torch.set_num_threads(1)  # of this thread
            context.run(self._compare, name, compare)  # logs with the id of the request

    def _wait_until_idle(self) -> None:
        while not self._requests.is_idle or self._closed.is_set():
            if self._closed.wait(_POLL_S):
                raise SystemExit  # ends this thread

    def _compare(self, name: str, compare: _Compare) -> None:
        shadow = self._model()
        assert shadow is not None  # since `submit`
        try:
            with _BeforeOperations(self._wait_until_idle):
                results = compare(shadow)
        except Exception as error:
            self._metrics.count_shadow(name, "failed")
            logger.warning("model %s: the shadow failed: %s: %s", name, type(error).__name__, error)
            return
        self._metrics.count_shadow(name, "compared", results)
        if differing := [field for field, result in results.items() if result != "same"]:
            logger.info("model %s: the shadow differs in %s", name, ", ".join(differing))

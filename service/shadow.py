"""The shadow: a checkpoint whose answers are compared with those of a served model."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from typing import Any

import torch
from pydantic import BaseModel
from torch.overrides import TorchFunctionMode

from service.extensions import AnsweredImage, Extension
from service.inference.engine import ServedModel
from service.inference.queue import RequestQueue
from service.prediction import answer_again
from service.telemetry.metrics import Metrics
from service.telemetry.records import ShadowResult

_MAX_WAITING = 16
"""Comparisons that wait; each holds the network's input of an image."""
_POLL_S = 0.005

logger = logging.getLogger(__name__)

_Compare = Callable[[AnsweredImage, BaseModel, ServedModel], Mapping[str, ShadowResult]]
_Job = tuple[Context, AnsweredImage, BaseModel]
"""The context of the request, an image that was answered, and its response body."""


class _BeforeOperations(TorchFunctionMode):
    """Calls a function before each operation of torch in this thread."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self._call = call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._call()
        return func(*args, **(kwargs or {}))


class Shadow(Extension):
    """Runs comparisons in a thread of its own, on one core, while no request is in progress.

    A comparison pauses before its next operation of torch when a request arrives. Comparisons above
    `_MAX_WAITING` are dropped. Nothing that fails here reaches a request.

    Args:
        model: The shadow, with the name of the model that it is compared with; None before it is
            loaded.
        requests: The queue of the requests.
        metrics: Count the comparisons.
        compare: The results of a comparison by field.
    """

    def __init__(
        self,
        model: Callable[[], ServedModel | None],
        requests: RequestQueue,
        metrics: Metrics,
        compare: _Compare | None = None,
    ) -> None:
        self._model = model
        self._requests = requests
        self._metrics = metrics
        self._results = compare or differences
        self._waiting: queue.Queue[_Job | None] = queue.Queue(_MAX_WAITING)
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

    async def answered(self, image: AnsweredImage, body: BaseModel) -> None:
        """Queues a comparison with a prediction of the model that has a shadow; does not wait."""
        shadow, name = self._model(), image.request.served.name
        if shadow is not None and shadow.name == name and image.prediction is not None:
            try:
                self._waiting.put_nowait((copy_context(), image, body))
            except queue.Full:
                self._metrics.count_shadow(name, "dropped")

    def _work(self) -> None:
        while job := self._waiting.get():
            context, image, body = job
            self._wait_until_idle()
            torch.set_num_threads(1)  # of this thread
            context.run(self._compare, image, body)  # logs with the id of the request

    def _wait_until_idle(self) -> None:
        while not self._requests.is_idle or self._closed.is_set():
            if self._closed.wait(_POLL_S):
                raise SystemExit  # ends this thread

    def _compare(self, image: AnsweredImage, body: BaseModel) -> None:
        shadow, name = self._model(), image.request.served.name
        assert shadow is not None  # since `answered`
        try:
            with _BeforeOperations(self._wait_until_idle):
                results = self._results(image, body, shadow)
        except Exception as error:
            self._metrics.count_shadow(name, "failed")
            logger.warning("model %s: the shadow failed: %s: %s", name, type(error).__name__, error)
            return
        self._metrics.count_shadow(name, "compared", results)
        if differing := [field for field, result in results.items() if result != "same"]:
            logger.info("model %s: the shadow differs in %s", name, ", ".join(differing))


def differences(
    image: AnsweredImage, body: BaseModel, shadow: ServedModel
) -> dict[str, ShadowResult]:
    """How the answer of another model to the same image differs, by field.

    Flags that are null in either answer are left out. Raises as `answer_again`.
    """
    other = answer_again(image, shadow)
    results: dict[str, ShadowResult] = {}
    for name in ("label", "ood", "unfamiliar"):
        pair = getattr(image.prediction, name), getattr(other.prediction, name)
        if None not in pair:
            results[name] = "same" if pair[0] == pair[1] else "different"
    interpretation = image.request.interpretation
    return results | interpretation.differences(body, interpretation.body(other))

"""Health check of a served model: it must give its known answer through the request queue."""

import asyncio
import math
from collections.abc import Awaitable, Callable

from torch import Tensor

from eulerlora.checkpoint.files import DRAWS
from eulerlora.settings import Draw
from eulerlora_client.contract.problems import OutOfMemory
from service.inference.engine import InferenceItem
from service.lifecycle.loading import CheckedModel

Infer = Callable[[InferenceItem], Awaitable[Tensor]]

RETRY_INTERVAL_S = 0.1


async def health_check(checked: CheckedModel, infer: Infer, timeout_s: float | None) -> str | None:
    """Returns why a model is unhealthy, in one line, or None if it gives its known answer.

    infer: returns the log-probabilities (trajectories, classes) of an item, through the queue
    that requests use. timeout_s: for all draws together. Retries after OutOfMemory, which is not
    a fault of the model, until the timeout.
    """
    answers: list[Tensor] = []
    try:
        async with asyncio.timeout(timeout_s):
            for draw in DRAWS:
                item = InferenceItem(checked.known.pixels, draw)
                answers.append(await _retry_out_of_memory(infer, item))
    except TimeoutError:
        return f"model {checked.name}: no known answer within {timeout_s:g} s"
    except Exception as error:
        return f"model {checked.name}: no known answer ({type(error).__name__}: {error})"
    fault = checked.known.fault(answers, checked.precision)
    return None if fault is None else f"model {checked.name}: {fault}"


async def warm_up(checked: CheckedModel, infer: Infer, rows: int) -> None:
    """Runs items of `rows` rows in total, so that the queue can estimate its throughput.

    Ignores errors.
    """
    item = InferenceItem(checked.known.pixels, Draw())
    count = math.ceil(rows / checked.model.network.settings.adapters)
    await asyncio.gather(*(infer(item) for _ in range(count)), return_exceptions=True)


async def _retry_out_of_memory(infer: Infer, item: InferenceItem) -> Tensor:
    while True:
        try:
            return await infer(item)
        except OutOfMemory:
            await asyncio.sleep(RETRY_INTERVAL_S)

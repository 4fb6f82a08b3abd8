"""A served model asked for its known answer, as a client would ask."""

import asyncio
import math
from collections.abc import Awaitable, Callable

from torch import Tensor

from eulerlora.known_answer import DRAWS
from eulerlora.settings import Draw
from service.errors import OutOfMemory
from service.inference.engine import Question
from service.lifecycle.loading import CheckedModel

Ask = Callable[[Question], Awaitable[Tensor]]

RETRY_S = 0.1


async def fault_of(checked: CheckedModel, ask: Ask, timeout_s: float | None) -> str | None:
    """Why a model is not fit to serve, in one line; None where it gives its known answer.

    ask: the answer (trajectories, classes) to a question, through the queue that clients use. A
    full device is not the model's fault: it is asked again while there is time. timeout_s: for
    the answers to all modes.
    """
    given: list[Tensor] = []
    try:
        async with asyncio.timeout(timeout_s):
            for draw in DRAWS:
                given.append(await _patiently(ask, Question(checked.known.pixels, draw)))
    except TimeoutError:
        return f"model {checked.name}: no known answer within {timeout_s:g} s"
    except Exception as error:
        return f"model {checked.name}: no known answer ({type(error).__name__}: {error})"
    fault = checked.known.fault(given, checked.precision)
    return None if fault is None else f"model {checked.name}: {fault}"


async def warm_up(checked: CheckedModel, ask: Ask, rows: int) -> None:
    """Has batches of so many rows run, so that it is known what they take. It may fail."""
    question = Question(checked.known.pixels, Draw())
    count = math.ceil(rows / checked.model.network.settings.adapters)
    await asyncio.gather(*(ask(question) for _ in range(count)), return_exceptions=True)


async def _patiently(ask: Ask, question: Question) -> Tensor:
    while True:
        try:
            return await ask(question)
        except OutOfMemory:
            await asyncio.sleep(RETRY_S)

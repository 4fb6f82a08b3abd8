"""A served model asked for its known answer through the queue."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eulerlora.predict import predict_rows
from eulerlora.settings import PLAIN
from eulerlora_client.contract.problems import OutOfMemory
from service.inference.engine import Question
from service.lifecycle.health_check import fault_of, warm_up
from service.lifecycle.loading import CheckedModel, load_checked

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def checked(checkpoint_folder: Path) -> CheckedModel:
    return load_checked(checkpoint_folder, (), torch.device("cpu"), PLAIN)


@pytest.fixture
def right(checked: CheckedModel) -> Callable[[Question], Tensor]:
    """(question) -> the model's own answer."""

    def answer(question: Question) -> Tensor:
        return predict_rows(checked.model.runtime, question.pixels[None], [question.draw])[0]

    return answer


def test_a_model_that_gives_its_known_answers_has_no_fault(checked, right) -> None:
    async def ask(question: Question) -> Tensor:
        return right(question)

    assert asyncio.run(fault_of(checked, ask, TIMEOUT_S)) is None


def test_a_wrong_answer_is_a_fault_of_the_model_by_name(checked, right) -> None:
    async def ask(question: Question) -> Tensor:
        return right(question).roll(1, dims=1)

    fault = asyncio.run(fault_of(checked, ask, TIMEOUT_S))
    assert fault is not None
    assert fault.startswith("model tiny: the known answer is wrong")


def test_an_answer_that_does_not_come_is_a_fault(checked) -> None:
    async def ask(_: Question) -> Tensor:
        await asyncio.Event().wait()
        raise AssertionError

    fault = asyncio.run(fault_of(checked, ask, timeout_s=0.05))
    assert fault == "model tiny: no known answer within 0.05 s"


def test_an_engine_that_fails_is_a_fault(checked) -> None:
    async def ask(_: Question) -> Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    fault = asyncio.run(fault_of(checked, ask, TIMEOUT_S))
    assert fault is not None
    assert "CUDA error" in fault


def test_a_device_that_is_full_is_asked_again(checked, right) -> None:
    refusals = [OutOfMemory("later")] * 2

    async def ask(question: Question) -> Tensor:
        if refusals:
            raise refusals.pop()
        return right(question)

    assert asyncio.run(fault_of(checked, ask, TIMEOUT_S)) is None
    assert not refusals


def test_a_device_that_stays_full_is_a_fault_in_the_end(checked) -> None:
    async def ask(_: Question) -> Tensor:
        raise OutOfMemory("always")

    fault = asyncio.run(fault_of(checked, ask, timeout_s=0.3))
    assert fault == "model tiny: no known answer within 0.3 s"


def test_a_warm_up_asks_for_so_many_rows_at_once(checked) -> None:
    asked, all_asked = [], asyncio.Event()

    async def ask(question: Question) -> Tensor:
        asked.append(question)
        if len(asked) == 4:
            all_asked.set()
        await all_asked.wait()
        return torch.zeros(0)

    async def story() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await warm_up(checked, ask, rows=7)

    asyncio.run(story())
    assert len(asked) == 4  # of two rows each


def test_a_warm_up_that_fails_is_no_fault(checked) -> None:
    async def ask(_: Question) -> Tensor:
        raise OutOfMemory("full")

    asyncio.run(warm_up(checked, ask, rows=7))

"""The health check of a served model, with a fake queue."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eulerlora.nn.runtime import predict_rows
from eulerlora.settings import DEFAULT_RUNTIME
from eulerlora_client.contract.problems import OutOfMemory
from service.inference.engine import InferenceItem
from service.lifecycle.loading import CheckedModel, health_check, load_checked, warm_up

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def checked(checkpoint_folder: Path) -> CheckedModel:
    return load_checked(checkpoint_folder, (), torch.device("cpu"), DEFAULT_RUNTIME)


@pytest.fixture
def infer_correctly(checked: CheckedModel) -> Callable[[InferenceItem], Tensor]:
    """Runs an item on the model: (item) -> log-probabilities."""

    def run(item: InferenceItem) -> Tensor:
        return predict_rows(checked.model.runtime, item.pixels[None], [item.draw])[0]

    return run


def test_a_model_that_gives_its_known_answers_is_healthy(checked, infer_correctly) -> None:
    async def infer(item: InferenceItem) -> Tensor:
        return infer_correctly(item)

    assert asyncio.run(health_check(checked, infer, TIMEOUT_S)) is None


def test_a_wrong_answer_is_reported_with_the_name_of_the_model(checked, infer_correctly) -> None:
    async def infer(item: InferenceItem) -> Tensor:
        return infer_correctly(item).roll(1, dims=1)

    fault = asyncio.run(health_check(checked, infer, TIMEOUT_S))
    assert fault is not None
    assert fault.startswith("model tiny: the known answer is wrong")


def test_a_missing_answer_is_reported(checked) -> None:
    async def infer(_: InferenceItem) -> Tensor:
        await asyncio.Event().wait()
        raise AssertionError

    fault = asyncio.run(health_check(checked, infer, timeout_s=0.05))
    assert fault == "model tiny: no known answer within 0.05 s"


def test_an_engine_error_is_reported(checked) -> None:
    async def infer(_: InferenceItem) -> Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    fault = asyncio.run(health_check(checked, infer, TIMEOUT_S))
    assert fault is not None
    assert "CUDA error" in fault


def test_out_of_memory_is_retried(checked, infer_correctly) -> None:
    refusals = [OutOfMemory("later")] * 2

    async def infer(item: InferenceItem) -> Tensor:
        if refusals:
            raise refusals.pop()
        return infer_correctly(item)

    assert asyncio.run(health_check(checked, infer, TIMEOUT_S)) is None
    assert not refusals


def test_out_of_memory_until_the_timeout_is_reported(checked) -> None:
    async def infer(_: InferenceItem) -> Tensor:
        raise OutOfMemory("always")

    fault = asyncio.run(health_check(checked, infer, timeout_s=0.3))
    assert fault == "model tiny: no known answer within 0.3 s"


def test_the_warm_up_submits_its_rows_at_the_same_time(checked) -> None:
    submitted, all_submitted = [], asyncio.Event()

    async def infer(item: InferenceItem) -> Tensor:
        submitted.append(item)
        if len(submitted) == 4:
            all_submitted.set()
        await all_submitted.wait()
        return torch.zeros(0)

    async def story() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await warm_up(checked, infer, rows=7)

    asyncio.run(story())
    assert len(submitted) == 4  # two rows each


def test_errors_of_the_warm_up_are_ignored(checked) -> None:
    async def infer(_: InferenceItem) -> Tensor:
        raise OutOfMemory("full")

    asyncio.run(warm_up(checked, infer, rows=7))

"""`samples=auto` in rounds: results, reservations, deadlines, disconnects and load."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from starlette.requests import ClientDisconnect

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import Checkpoint
from eulerlora_contract.answers import Prediction
from eulerlora_contract.checkpoints import Threshold
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.queries import PredictQuery
from tests.conftest import ENERGY, MARGINS, STOCH
from tests.problems import raises_problem
from tests.service.harness import (
    DET,
    TIMEOUT_S,
    FakeRequest,
    PipelineHarness,
    Recorder,
    predict_one,
)
from tests.service.prediction.conftest import Open

pytestmark = pytest.mark.anyio

THRESHOLDS = {"auto": 0.55, 4: 0.5, 2: 0.6, 1: 0.7}


BALANCED = replace(STOCH, sampler="balanced")


def auto(seed: int) -> PredictQuery:
    return PredictQuery(mode="stoch", samples="auto", seed=seed)


@pytest.fixture(scope="module")
def balanced(make_network, make_config) -> EulerLoRA:
    """A model with the sampler `balanced`, and thresholds for some sample counts and for auto."""
    network = make_network()
    thresholds = tuple(
        Threshold(
            options=replace(BALANCED, samples=samples),
            msp=msp,
            kept=0.9,
            images=9,
            data="test",
            energy=ENERGY,
        )
        for samples, msp in THRESHOLDS.items()
    )
    margins = MARGINS.model_copy(update={"options": BALANCED})
    config = make_config(network, sampler="balanced", thresholds=thresholds, margins=margins)
    return EulerLoRA(Checkpoint(network, config, "sha256:0"), torch.device("cpu"))


@pytest.fixture
def harness(harness: Open, balanced) -> Open:
    """(*extensions, **settings) -> a context of a harness of the balanced model."""
    return partial(harness, of=balanced)


@pytest.fixture(scope="module")
def taken(balanced, png) -> dict[int, int]:
    """The number of samples that auto draws for the image, by seed."""
    with Image.open(BytesIO(png)) as image:
        samples = {
            seed: int(balanced.predict([image], "stoch", "auto", seed).samples)
            for seed in range(30)
        }
    assert len(set(samples.values())) > 2
    return samples


@pytest.fixture(scope="module")
def long(taken) -> PredictQuery:
    """A query that takes at least three rounds."""
    return auto(max(taken, key=lambda seed: taken[seed]))


class PassGate:
    """Replaces the gate of a pipeline harness; every pass waits for a permit."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)

    def wait(self, timeout: float) -> bool:
        return self._permits.acquire(timeout=timeout)

    def set(self) -> None:
        """Permits all passes."""
        self._permits.release(1000)


def block_passes(harness: PipelineHarness) -> PassGate:
    gate: Any = PassGate()
    harness.gate = gate
    return gate


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.005)


def assert_same(actual: Prediction, expected: Prediction) -> None:
    assert (actual.samples, actual.label, actual.ood) == (
        expected.samples, expected.label, expected.ood
    )  # fmt: skip
    assert actual.probabilities == pytest.approx(expected.probabilities, abs=1e-5)
    assert actual.entropy == pytest.approx(expected.entropy, abs=1e-4)


def test_auto_gives_the_result_of_the_drawn_number_of_samples(harness, png, taken) -> None:
    with harness() as running:
        for seed, samples in list(taken.items())[:8]:
            result = asyncio.run(predict_one(running, png, auto(seed)))
            query = PredictQuery(mode="stoch", samples=samples, seed=seed)
            expected = asyncio.run(predict_one(running, png, query))
            assert result.samples == samples
            assert result.trajectories == 2 * samples
            assert result.rows == 2 * samples
            assert result.probabilities == pytest.approx(expected.probabilities, abs=1e-5)
            assert result.mutual_information == pytest.approx(expected.mutual_information, abs=1e-5)
            assert (result.ood_threshold, result.ood) == (0.55, result.msp < 0.55)
            assert "rows" not in expected.model_fields_set


def test_auto_needs_margins(balanced, png) -> None:
    config = balanced.config.model_copy(update={"margins": None})
    model = EulerLoRA(Checkpoint(balanced.network, config, "sha256:1"), torch.device("cpu"))
    with PipelineHarness(model, (), {}).running() as running, raises_problem("invalid_parameter"):
        asyncio.run(predict_one(running, png, auto(1)))
    with Image.open(BytesIO(png)) as image, pytest.raises(SettingsError):
        model.predict([image], "stoch", "auto")


def test_results_do_not_depend_on_concurrent_requests(harness, png, taken) -> None:
    queries = [auto(seed) for seed in taken]
    queries += [PredictQuery(mode="stoch", samples=5, seed=seed) for seed in range(10)] + [DET] * 5

    async def scenario(harness: PipelineHarness) -> list[Prediction]:
        running = await harness.block_engine()
        tasks = [asyncio.create_task(predict_one(harness, png, query)) for query in queries]
        harness.gate.set()
        await running
        return [await task for task in tasks]

    with harness(max_batch_rows=64) as running:
        together = asyncio.run(scenario(running))
        assert max(running.passes) > 1
        for query, result in zip(queries, together, strict=True):
            assert_same(result, asyncio.run(predict_one(running, png, query)))
    assert [result.samples for result in together[: len(taken)]] == list(taken.values())


async def test_rows_stay_reserved_for_later_rounds(harness, png, long, taken) -> None:
    with harness(max_waiting_rows=6) as started:
        gate = block_passes(started)
        accepted = asyncio.create_task(predict_one(started, png, long))
        await wait_until(lambda: started.passes == [1])
        assert started.queue.rows == 2 * (4 - 1)  # the most samples of `auto`
        with raises_problem("overloaded"):
            await predict_one(started, png)
        gate.set()
        assert (await accepted).samples == taken[long.seed]
        assert started.queue.rows == started.queue.items == 0


def test_a_deadline_between_rounds_gives_no_result(harness, png, long, monkeypatch) -> None:
    late_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late_s)
    for module in ("service.prediction", "service.inference.queue"):
        monkeypatch.setattr(f"{module}.time", clock)

    async def scenario(harness: PipelineHarness) -> None:
        nonlocal late_s
        gate = block_passes(harness)
        late = asyncio.create_task(predict_one(harness, png, long))
        await wait_until(lambda: harness.passes == [1])
        late_s = 2 * TIMEOUT_S
        gate.set()
        with raises_problem("deadline_passed"):
            await late
        assert harness.queue.rows == 0

    with harness() as running:
        asyncio.run(scenario(running))
    assert running.passes == [1]


async def test_no_round_runs_after_a_disconnect(harness, png, long) -> None:
    with harness() as started:
        gate = block_passes(started)
        fake = FakeRequest(png)
        cancelled = asyncio.create_task(started.pipeline.predict(fake.request, long))
        await wait_until(lambda: started.passes == [1])
        fake.disconnect()
        with pytest.raises(ClientDisconnect):
            await cancelled
        assert started.queue.rows == 0
        gate.set()
        await predict_one(started, png)
    assert started.passes == [1, 1]


def test_extensions_and_timing_cover_all_rounds(harness, png, long, taken) -> None:
    recorder = Recorder()
    with harness(recorder) as running:
        body = asyncio.run(predict_one(running, png, long))
    assert [recorded for _, recorded in recorder.images] == [body]
    assert body.samples == taken[long.seed]
    assert running.passes == [1] * ((1, 2, 4).index(taken[long.seed]) + 1)
    (completed,) = running.predictions
    assert completed.model_s > 0
    assert completed.queue_s >= 0

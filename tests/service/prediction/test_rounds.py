"""`samples=auto` in rounds, alone and among others, late, left alone, refused."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from io import BytesIO
from typing import Any

import pytest
import torch
from PIL import Image
from starlette.requests import ClientDisconnect

from eulerlora.adaptive_sampling import MAX_SAMPLES, ROUNDS
from eulerlora.checkpoint import Checkpoint
from eulerlora.config import Threshold
from eulerlora.model import EulerLoRA
from eulerlora.settings import Draw
from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.problems import DeadlinePassed, Overloaded
from eulerlora_client.contract.queries import PredictQuery
from service.audit.log import AuditEntry
from tests.service.harness import DET, TIMEOUT_S, FakeRequest, PipelineHarness, predict_one

THRESHOLDS = {"auto": 0.55, 16: 0.5, 2: 0.6, 1: 0.7}


def auto(seed: int) -> PredictQuery:
    return PredictQuery(mode="stoch", samples="auto", seed=seed)


@pytest.fixture(scope="module")
def balanced(make_network, make_config) -> EulerLoRA:
    """A model of balanced samples, with thresholds for some numbers of them and for auto."""
    network = make_network()
    thresholds = tuple(
        Threshold(mode="stoch", samples=samples, msp=msp, kept=0.9, images=9, data="test")
        for samples, msp in THRESHOLDS.items()
    )
    config = make_config(network, sampler="balanced", thresholds=thresholds)
    return EulerLoRA(Checkpoint(network, config, "sha256:0"), torch.device("cpu"))


Open = Callable[..., AbstractContextManager[PipelineHarness]]


@pytest.fixture
def harness(balanced) -> Open:
    """(audit, **settings) -> a context of a pipeline harness."""

    def build(audit: Any = None, **settings: Any) -> AbstractContextManager[PipelineHarness]:
        return PipelineHarness(balanced, audit, settings).running()

    return build


@pytest.fixture(scope="module")
def taken(balanced, png) -> dict[int, int]:
    """How many samples auto takes of the picture, by seed."""
    with Image.open(BytesIO(png)) as picture:
        found = {
            seed: int(balanced.predict([picture], "stoch", "auto", seed).samples)
            for seed in range(30)
        }
    assert len(set(found.values())) > 2
    return found


@pytest.fixture(scope="module")
def long(taken) -> PredictQuery:
    """A question that takes three rounds or more."""
    return auto(max(taken, key=lambda seed: taken[seed]))


class OneByOne:
    """In the place of a pipeline harness's gate: each pass waits until it is let through."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)

    def wait(self, timeout: float) -> bool:
        return self._permits.acquire(timeout=timeout)

    def set(self) -> None:
        """Lets all of them through."""
        self._permits.release(1000)


def held(harness: PipelineHarness) -> OneByOne:
    gate: Any = OneByOne()
    harness.gate = gate
    return gate


def queued(harness: PipelineHarness) -> list[Draw]:
    """What waits for the engine."""
    tickets = list(harness.queue._tickets)
    return [ticket.item.draw for ticket in tickets if ticket.item is not None]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.005)


def assert_same(found: Prediction, expected: Prediction) -> None:
    assert (found.samples, found.label, found.ood) == (
        expected.samples, expected.label, expected.ood
    )  # fmt: skip
    assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-5)
    assert found.entropy == pytest.approx(expected.entropy, abs=1e-4)


def test_an_answer_of_auto_is_that_of_as_many_samples(harness, png, taken) -> None:
    with harness() as running:
        for seed, samples in list(taken.items())[:8]:
            found = asyncio.run(predict_one(running, png, auto(seed))).body
            asked = PredictQuery(mode="stoch", samples=samples, seed=seed)
            expected = asyncio.run(predict_one(running, png, asked)).body
            assert found.samples == samples
            assert found.trajectories == 2 * samples
            assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-5)
            assert found.mutual_information == pytest.approx(expected.mutual_information, abs=1e-5)
            assert (found.ood_threshold, found.ood) == (0.55, found.msp < 0.55)
            assert "standard_error" not in expected.model_fields_set


def test_the_errors_are_those_that_the_library_tells(harness, balanced, png, long) -> None:
    with harness() as running:
        found = asyncio.run(predict_one(running, png, long)).body
    with Image.open(BytesIO(png)) as picture:
        errors = balanced.predict([picture], "stoch", "auto", long.seed).standard_errors
    assert found.standard_error.msp == pytest.approx(float(errors.msp), abs=1e-5)
    assert found.standard_error.entropy == pytest.approx(float(errors.entropy), abs=1e-5)


def test_under_load_every_answer_is_the_one_that_it_is_alone(harness, png, taken) -> None:
    asked = [auto(seed) for seed in taken]
    asked += [PredictQuery(mode="stoch", samples=5, seed=seed) for seed in range(10)] + [DET] * 5

    async def story(harness: PipelineHarness) -> list[Prediction]:
        running = await harness.block_engine()
        asking = [asyncio.create_task(predict_one(harness, png, each)) for each in asked]
        harness.gate.set()
        await running
        return [(await each).body for each in asking]

    with harness(max_batch_rows=64) as running:
        together = asyncio.run(story(running))
        assert max(running.passes) > 1
        for query, found in zip(asked, together, strict=True):
            assert_same(found, asyncio.run(predict_one(running, png, query)).body)
    assert [each.samples for each in together[: len(taken)]] == list(taken.values())


def test_rows_are_kept_for_later_rounds_and_an_accepted_question_is_not_refused(
    harness, png, long, taken
) -> None:
    async def story(harness: PipelineHarness) -> None:
        gate = held(harness)
        accepted = asyncio.create_task(predict_one(harness, png, long))
        await until(lambda: harness.passes == [1])
        assert harness.queue.rows == 2 * (MAX_SAMPLES - ROUNDS[0])
        assert harness.queue.items == 1
        with pytest.raises(Overloaded):
            await predict_one(harness, png)
        gate.set()
        assert (await accepted).body.samples == taken[long.seed]
        assert harness.queue.rows == harness.queue.items == 0

    with harness(max_waiting_rows=2 * (MAX_SAMPLES - ROUNDS[0])) as running:
        asyncio.run(story(running))


def test_rows_are_kept_as_past_questions_took_them(harness, png, taken) -> None:
    short = min(taken, key=lambda seed: taken[seed])
    with harness() as running:
        asking, engine = running.pipeline._asking, running.served.engine
        assert asking.rows(engine, "auto") == 2 * MAX_SAMPLES
        before = asking.rows(engine, "auto")
        for _ in range(40):
            asyncio.run(predict_one(running, png, auto(short)))
        assert 2 * taken[short] <= asking.rows(engine, "auto") < before / 2
        assert asking.rows(engine, 5) == 10


def test_a_question_whose_deadline_passes_between_rounds_gets_no_answer(harness, png, long) -> None:
    async def story(harness: PipelineHarness) -> None:
        gate = held(harness)
        late = asyncio.create_task(predict_one(harness, png, long))
        await until(lambda: harness.passes == [1])
        await asyncio.sleep(2.2)
        gate.set()
        with pytest.raises(DeadlinePassed):
            await late
        assert harness.queue.rows == 0

    with harness(deadline_s=2) as running:
        asyncio.run(story(running))
    assert running.passes == [1]


def test_of_a_client_that_leaves_no_later_round_is_run(harness, png, long) -> None:
    async def story(harness: PipelineHarness) -> None:
        gate = held(harness)
        gone = FakeRequest(png)
        leaving = asyncio.create_task(harness.pipeline.predict(gone.request, long))
        await until(lambda: harness.passes == [1])
        gone.disconnect()
        with pytest.raises(ClientDisconnect):
            await leaving
        assert harness.queue.rows == 0
        gate.set()
        await predict_one(harness, png)

    with harness() as running:
        asyncio.run(story(running))
    assert running.passes == [1, 1]


def test_under_load_auto_is_run_with_few_samples_only_where_that_is_allowed(
    harness, png, long, taken
) -> None:
    async def story(harness: PipelineHarness) -> Prediction:
        running = await harness.block_engine()
        first = asyncio.create_task(
            predict_one(harness, png, PredictQuery(mode="stoch", samples=8))
        )
        await harness.wait_for_rows(16)
        strained = asyncio.create_task(predict_one(harness, png, long))
        await until(lambda: len(queued(harness)) == 2)
        harness.gate.set()
        await running
        await first
        return (await strained).body

    with harness(max_waiting_rows=30, fewer_samples=True) as running:
        body = asyncio.run(story(running))
    assert (body.samples, body.ood_threshold) == (2, 0.6)
    assert body.warnings == ("samples reduced from auto to 2 under load",)
    assert "standard_error" not in body.model_fields_set
    with harness(max_waiting_rows=100) as running:
        body = asyncio.run(story(running))
    assert (body.samples, body.warnings) == (taken[long.seed], [])


class Audit:
    """An audit log that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[AuditEntry] = []

    async def record(self, entry: AuditEntry) -> None:
        self.told.append(entry)


def test_the_audit_log_and_the_timing_tell_of_all_rounds(harness, png, long, taken) -> None:
    audit = Audit()
    with harness(audit) as running:
        predicted = asyncio.run(predict_one(running, png, long))
    assert audit.told == [AuditEntry(predicted.body, None, png, samples_asked="auto")]
    assert predicted.body.samples == taken[long.seed]
    assert running.passes == [1] * (ROUNDS.index(taken[long.seed]) + 1)
    assert predicted.timing.model_s > 0
    assert predicted.timing.queue_s >= 0

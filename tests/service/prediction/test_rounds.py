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
from eulerlora_client.contract.problems import DeadlinePassed, Overloaded
from service.audit.log import Decision
from service.schemas import PredictionBody, PredictQuery
from tests.service.house import DET, TIMEOUT_S, House, Sent, run_one

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


Open = Callable[..., AbstractContextManager[House]]


@pytest.fixture
def house(balanced) -> Open:
    """(audit, **settings) -> a context of a house."""

    def build(audit: Any = None, **settings: Any) -> AbstractContextManager[House]:
        return House(balanced, audit, settings).open()

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
    """In the place of a house's gate: each pass waits until it is let through."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)

    def wait(self, timeout: float) -> bool:
        return self._permits.acquire(timeout=timeout)

    def set(self) -> None:
        """Lets all of them through."""
        self._permits.release(1000)


def held(house: House) -> OneByOne:
    gate: Any = OneByOne()
    house.gate = gate
    return gate


def queued(house: House) -> list[Draw]:
    """What waits for the engine."""
    places = list(house.batcher.room._places)
    return [each.question.draw for each in places if each.question is not None]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.005)


def assert_same(found: PredictionBody, expected: PredictionBody) -> None:
    assert (found.samples, found.label, found.ood) == (
        expected.samples, expected.label, expected.ood
    )  # fmt: skip
    assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-5)
    assert found.entropy == pytest.approx(expected.entropy, abs=1e-4)


def test_an_answer_of_auto_is_that_of_as_many_samples(house, png, taken) -> None:
    with house() as open_house:
        for seed, samples in list(taken.items())[:8]:
            found = asyncio.run(run_one(open_house, png, auto(seed))).body
            asked = PredictQuery(mode="stoch", samples=samples, seed=seed)
            expected = asyncio.run(run_one(open_house, png, asked)).body
            assert found.samples == samples
            assert found.trajectories == 2 * samples
            assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-5)
            assert found.mutual_information == pytest.approx(expected.mutual_information, abs=1e-5)
            assert (found.ood_threshold, found.ood) == (0.55, found.msp < 0.55)
            assert "standard_error" not in expected.model_fields_set


def test_the_errors_are_those_that_the_library_tells(house, balanced, png, long) -> None:
    with house() as open_house:
        found = asyncio.run(run_one(open_house, png, long)).body
    with Image.open(BytesIO(png)) as picture:
        errors = balanced.predict([picture], "stoch", "auto", long.seed).standard_errors
    assert found.standard_error.msp == pytest.approx(float(errors.msp), abs=1e-5)
    assert found.standard_error.entropy == pytest.approx(float(errors.entropy), abs=1e-5)


def test_under_load_every_answer_is_the_one_that_it_is_alone(house, png, taken) -> None:
    asked = [auto(seed) for seed in taken]
    asked += [PredictQuery(mode="stoch", samples=5, seed=seed) for seed in range(10)] + [DET] * 5

    async def story(house: House) -> list[PredictionBody]:
        running = await house.busy()
        asking = [asyncio.create_task(run_one(house, png, each)) for each in asked]
        house.gate.set()
        await running
        return [(await each).body for each in asking]

    with house(max_batch_rows=64) as open_house:
        together = asyncio.run(story(open_house))
        assert max(open_house.passes) > 1
        for query, found in zip(asked, together, strict=True):
            assert_same(found, asyncio.run(run_one(open_house, png, query)).body)
    assert [each.samples for each in together[: len(taken)]] == list(taken.values())


def test_rows_are_kept_for_later_rounds_and_an_accepted_question_is_not_refused(
    house, png, long, taken
) -> None:
    async def story(house: House) -> None:
        gate = held(house)
        accepted = asyncio.create_task(run_one(house, png, long))
        await until(lambda: house.passes == [1])
        assert house.batcher.waiting_rows == 2 * (MAX_SAMPLES - ROUNDS[0])
        assert house.batcher.waiting_questions == 1
        with pytest.raises(Overloaded):
            await run_one(house, png)
        gate.set()
        assert (await accepted).body.samples == taken[long.seed]
        assert house.batcher.waiting_rows == house.batcher.waiting_questions == 0

    with house(max_waiting_rows=2 * (MAX_SAMPLES - ROUNDS[0])) as open_house:
        asyncio.run(story(open_house))


def test_rows_are_kept_as_past_questions_took_them(house, png, taken) -> None:
    short = min(taken, key=lambda seed: taken[seed])
    with house() as open_house:
        asking, engine = open_house.pipeline._asking, open_house.served.engine
        assert asking.rows(engine, "auto") == 2 * MAX_SAMPLES
        before = asking.rows(engine, "auto")
        for _ in range(40):
            asyncio.run(run_one(open_house, png, auto(short)))
        assert 2 * taken[short] <= asking.rows(engine, "auto") < before / 2
        assert asking.rows(engine, 5) == 10


def test_a_question_whose_deadline_passes_between_rounds_gets_no_answer(house, png, long) -> None:
    async def story(house: House) -> None:
        gate = held(house)
        late = asyncio.create_task(run_one(house, png, long))
        await until(lambda: house.passes == [1])
        await asyncio.sleep(2.2)
        gate.set()
        with pytest.raises(DeadlinePassed):
            await late
        assert house.batcher.waiting_rows == 0

    with house(deadline_s=2) as open_house:
        asyncio.run(story(open_house))
    assert open_house.passes == [1]


def test_of_a_client_that_leaves_no_later_round_is_run(house, png, long) -> None:
    async def story(house: House) -> None:
        gate = held(house)
        gone = Sent(png)
        leaving = asyncio.create_task(house.pipeline.predict(gone.request, long))
        await until(lambda: house.passes == [1])
        gone.leave()
        with pytest.raises(ClientDisconnect):
            await leaving
        assert house.batcher.waiting_rows == 0
        gate.set()
        await run_one(house, png)

    with house() as open_house:
        asyncio.run(story(open_house))
    assert open_house.passes == [1, 1]


def test_under_load_auto_is_run_with_few_samples_only_where_that_is_allowed(
    house, png, long, taken
) -> None:
    async def story(house: House) -> PredictionBody:
        running = await house.busy()
        first = asyncio.create_task(run_one(house, png, PredictQuery(mode="stoch", samples=8)))
        await house.waiting(16)
        strained = asyncio.create_task(run_one(house, png, long))
        await until(lambda: len(queued(house)) == 2)
        house.gate.set()
        await running
        await first
        return (await strained).body

    with house(max_waiting_rows=30, fewer_samples=True) as open_house:
        body = asyncio.run(story(open_house))
    assert (body.samples, body.ood_threshold) == (2, 0.6)
    assert body.warnings == ["samples reduced from auto to 2 under load"]
    assert "standard_error" not in body.model_fields_set
    with house(max_waiting_rows=100) as open_house:
        body = asyncio.run(story(open_house))
    assert (body.samples, body.warnings) == (taken[long.seed], [])


class Audit:
    """An audit log that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Decision] = []

    async def record(self, decision: Decision) -> None:
        self.told.append(decision)


def test_the_audit_log_and_the_timing_tell_of_all_rounds(house, png, long, taken) -> None:
    audit = Audit()
    with house(audit) as open_house:
        predicted = asyncio.run(run_one(open_house, png, long))
    assert audit.told == [Decision(predicted.body, None, png, samples_asked="auto")]
    assert predicted.body.samples == taken[long.seed]
    assert open_house.passes == [1] * (ROUNDS.index(taken[long.seed]) + 1)
    assert predicted.timing.model_s > 0
    assert predicted.timing.queue_s >= 0

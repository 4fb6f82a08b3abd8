"""A request's way through the service while the engine is busy, full, late or left alone."""

import asyncio
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
import torch
from PIL import Image
from starlette.requests import ClientDisconnect

from eulerlora.checkpoint import Checkpoint
from eulerlora.config import Threshold
from eulerlora.model import EulerLoRA
from eulerlora_client.contract.problems import (
    AuditUnavailable,
    DeadlinePassed,
    NotReady,
    OutOfMemory,
    Overloaded,
)
from service.audit.log import Decision
from service.inference.models import ServedModel
from service.schemas import PredictQuery
from tests.service.house import DET, TIMEOUT_S, House, Sent, run_one

EIGHT = PredictQuery(mode="stoch", samples=8)


Open = Callable[..., Any]


@pytest.fixture
def house(model) -> Open:
    """(audit, model, **settings) -> a context of a house."""

    def build(audit: Any = None, of: EulerLoRA = model, **settings: Any) -> Any:
        return House(of, audit, settings).open()

    return build


@pytest.fixture
def calibrated(make_network, make_config) -> EulerLoRA:
    """A model with thresholds for stoch with 1, 2 and 4 samples."""
    network = make_network()
    thresholds = tuple(
        Threshold(mode="stoch", samples=each, msp=each / 10, kept=0.9, images=9, data="test")
        for each in (1, 2, 4)
    )
    checkpoint = Checkpoint(network, make_config(network, thresholds=thresholds), "sha256:0")
    return EulerLoRA(checkpoint, torch.device("cpu"))


def test_a_lone_request_is_answered_with_its_timing(house, png) -> None:
    with house() as open_house:
        predicted = asyncio.run(run_one(open_house, png))
    assert predicted.body.request_id == "the-id"
    assert predicted.timing.decode_s > 0
    assert predicted.timing.queue_s >= 0
    assert predicted.timing.model_s > 0


def test_samples_are_drawn_as_the_checkpoint_says(house, make_network, make_config, png) -> None:
    network, sampled = make_network(), PredictQuery(mode="stoch", samples=3, seed=1)
    config = make_config(network, sampler="balanced")
    balanced = EulerLoRA(Checkpoint(network, config, "sha256:0"), torch.device("cpu"))
    with house(of=balanced) as open_house:
        body = asyncio.run(run_one(open_house, png, sampled)).body
    with Image.open(BytesIO(png)) as picture:
        own, other = (
            balanced.predict([picture], "stoch", 3, 1, sampler=sampler).probabilities[0]
            for sampler in ("balanced", "independent")
        )
    found = torch.tensor(list(body.probabilities.values()), dtype=torch.float64)
    torch.testing.assert_close(found, own, rtol=0, atol=1e-5)
    assert (found - other).abs().max() > 1e-3


def test_a_full_queue_refuses_a_request_and_accepts_a_smaller_one(house, png) -> None:
    async def story(house: House) -> None:
        running = await house.busy()
        accepted = asyncio.create_task(run_one(house, png, EIGHT))
        await house.waiting(16)
        with pytest.raises(Overloaded) as raised:
            await run_one(house, png, EIGHT)
        assert raised.value.retry_after_s is not None
        small = asyncio.create_task(run_one(house, png))
        await house.waiting(18)
        house.gate.set()
        await running
        assert (await accepted).body.samples == 8
        assert (await small).body.mode == "det"
        assert (await run_one(house, png, EIGHT)).body.samples == 8

    with house(max_waiting_rows=20) as open_house:
        asyncio.run(story(open_house))


def test_a_request_whose_deadline_passes_in_the_queue_is_never_run(house, png) -> None:
    async def story(house: House) -> None:
        running = await house.busy()
        with pytest.raises(DeadlinePassed):
            await run_one(house, png)
        assert not house.gate.is_set()  # it did not have to wait for the engine
        assert house.batcher.waiting_rows == 0
        house.gate.set()
        await running

    with house(deadline_s=0.3) as open_house:
        asyncio.run(story(open_house))
    assert open_house.passes == [1]


def test_a_request_whose_deadline_passes_before_it_is_decoded_is_never_run(house, png) -> None:
    async def story(house: House) -> None:
        house.decoder.gate.clear()
        with pytest.raises(DeadlinePassed):
            await run_one(house, png)
        assert house.decoder.entered.is_set()
        assert house.batcher.waiting_rows == 0

    with house(deadline_s=0.3) as open_house:
        asyncio.run(story(open_house))
    assert open_house.passes == []


def test_what_runs_at_its_deadline_is_still_answered(house, png) -> None:
    async def story(house: House) -> None:
        house.gate.clear()
        asking = asyncio.create_task(run_one(house, png))
        assert await asyncio.to_thread(house.entered.wait, TIMEOUT_S)
        await asyncio.sleep(2.5)
        house.gate.set()
        assert (await asking).body.mode == "det"

    with house(deadline_s=2) as open_house:
        asyncio.run(story(open_house))


def test_a_client_that_leaves_while_queued_frees_its_rows_and_is_never_run(house, png) -> None:
    async def story(house: House) -> None:
        running = await house.busy()
        gone = Sent(png)
        leaving = asyncio.create_task(house.pipeline.predict(gone.request, EIGHT))
        patient = asyncio.create_task(run_one(house, png))
        await house.waiting(18)
        gone.leave()
        with pytest.raises(ClientDisconnect):
            await leaving
        assert house.batcher.waiting_rows == 2
        house.gate.set()
        await running
        await patient

    with house() as open_house:
        asyncio.run(story(open_house))
    assert open_house.passes == [1, 1]


def test_a_client_that_leaves_while_its_batch_runs_hurts_nobody(house, png) -> None:
    async def story(house: House) -> None:
        house.gate.clear()
        gone = Sent(png)
        leaving = asyncio.create_task(house.pipeline.predict(gone.request, DET))
        assert await asyncio.to_thread(house.entered.wait, TIMEOUT_S)
        gone.leave()
        with pytest.raises(ClientDisconnect):
            await leaving
        house.gate.set()
        await run_one(house, png)

    with house() as open_house:
        asyncio.run(story(open_house))


def test_a_client_that_leaves_during_decoding_is_never_run(house, png) -> None:
    async def story(house: House) -> None:
        house.decoder.gate.clear()
        gone = Sent(png)
        leaving = asyncio.create_task(house.pipeline.predict(gone.request, DET))
        async with asyncio.timeout(TIMEOUT_S):
            await house.decoder.entered.wait()
        assert house.batcher.waiting_rows == 2
        gone.leave()
        with pytest.raises(ClientDisconnect):
            await leaving
        assert house.batcher.waiting_rows == 0

    with house() as open_house:
        asyncio.run(story(open_house))
    assert open_house.passes == []


def test_a_revision_that_was_replaced_still_answers_what_it_was_asked(
    house, png, make_network, make_config
) -> None:
    network = make_network(seed=8)
    newer = EulerLoRA(
        Checkpoint(network, make_config(network), "sha256:newer"), torch.device("cpu")
    )

    async def story(house: House) -> None:
        running = await house.busy()
        before = asyncio.create_task(run_one(house, png))
        await house.waiting(2)
        house.models.replace(ServedModel.of(newer))
        after = asyncio.create_task(run_one(house, png))
        await house.waiting(4)
        house.gate.set()
        await running
        old, new = (await before).body, (await after).body
        assert (old.revision, new.revision) == (house.served.revision, "sha256:newer")
        assert old.probabilities != new.probabilities
        wanted = (await run_one(house, png)).body
        assert wanted.probabilities == new.probabilities

    with house() as open_house:
        asyncio.run(story(open_house))


def test_under_load_a_question_is_run_with_fewer_samples_and_says_so(
    house, calibrated, png
) -> None:
    async def story(house: House) -> None:
        running = await house.busy()
        first = asyncio.create_task(run_one(house, png, EIGHT))
        await house.waiting(16)
        second = asyncio.create_task(run_one(house, png, EIGHT))
        await house.waiting(24)
        plain = asyncio.create_task(run_one(house, png))
        await house.waiting(26)
        house.gate.set()
        await running
        full, reduced, det = (await first).body, (await second).body, (await plain).body
        assert (full.samples, full.trajectories, full.warnings) == (8, 16, [])
        assert (reduced.samples, reduced.trajectories) == (4, 8)
        assert (full.ood_threshold, reduced.ood_threshold) == (None, 0.4)
        assert reduced.warnings == ["samples reduced from 8 to 4 under load"]
        assert (det.samples, det.warnings) == (1, [])
        asked = PredictQuery(mode="stoch", samples=4)
        assert (await run_one(house, png, asked)).body.probabilities == pytest.approx(
            reduced.probabilities, abs=1e-6
        )

    with house(of=calibrated, max_waiting_rows=30, fewer_samples=True) as open_house:
        asyncio.run(story(open_house))


def test_without_leave_to_do_so_samples_are_never_reduced(house, calibrated, png) -> None:
    async def story(house: House) -> None:
        running = await house.busy()
        asking = [asyncio.create_task(run_one(house, png, EIGHT)) for _ in range(2)]
        await house.waiting(32)
        house.gate.set()
        await running
        assert [(await each).body.samples for each in asking] == [8, 8]

    with house(of=calibrated, max_waiting_rows=40) as open_house:
        asyncio.run(story(open_house))


class Audit:
    """An audit log that keeps what it is told, or refuses."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.told: list[Decision] = []
        self.refusal = refusal

    async def record(self, decision: Decision) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.told.append(decision)


def test_a_decision_is_recorded_and_counted_before_it_is_sent(house, png) -> None:
    audit = Audit()
    with house(audit) as open_house:
        predicted = asyncio.run(run_one(open_house, png))
    assert audit.told == [Decision(predicted.body, None, png)]
    assert open_house.told == [(predicted.body, predicted.timing)]


def test_a_decision_that_cannot_be_recorded_is_neither_given_nor_counted(house, png) -> None:
    with house(Audit(AuditUnavailable("full"))) as open_house, pytest.raises(AuditUnavailable):
        asyncio.run(run_one(open_house, png))
    assert open_house.told == []


def test_a_lost_device_makes_every_request_unready(house, png) -> None:
    def lose(*_: object) -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    with house() as open_house:
        hook = open_house.served.model.network.register_forward_pre_hook(lose)
        try:
            for _ in range(2):
                with pytest.raises(NotReady):
                    asyncio.run(run_one(open_house, png))
        finally:
            hook.remove()
    assert len(open_house.passes) == 1


def test_a_batch_without_memory_is_split_and_a_single_image_without_it_is_a_503(house, png) -> None:
    def fill(_: object, inputs: tuple[torch.Tensor, ...]) -> None:
        if len(inputs[0]) > 2 or len(inputs[1]) > 100:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    async def story(house: House) -> None:
        running = await house.busy()
        asking = [asyncio.create_task(run_one(house, png)) for _ in range(4)]
        await house.waiting(8)
        house.gate.set()
        await running
        assert len({(await each).body.msp for each in asking}) == 1
        with pytest.raises(OutOfMemory):
            await run_one(house, png, PredictQuery(mode="stoch", samples=64))
        await run_one(house, png)

    with house() as open_house:
        hook = open_house.served.model.network.register_forward_pre_hook(fill)
        try:
            asyncio.run(story(open_house))
        finally:
            hook.remove()
    assert open_house.passes[:4] == [1, 4, 2, 2]

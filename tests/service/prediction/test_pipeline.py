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
from eulerlora_client.contract.queries import PredictQuery
from service.audit.log import AuditEntry
from service.inference.models import ServedModel
from tests.service.harness import DET, TIMEOUT_S, FakeRequest, PipelineHarness, predict_one

EIGHT = PredictQuery(mode="stoch", samples=8)


Open = Callable[..., Any]


@pytest.fixture
def harness(model) -> Open:
    """(audit, model, **settings) -> a context of a pipeline harness."""

    def build(audit: Any = None, of: EulerLoRA = model, **settings: Any) -> Any:
        return PipelineHarness(of, audit, settings).running()

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


def test_a_lone_request_is_answered_with_its_timing(harness, png) -> None:
    with harness() as running:
        predicted = asyncio.run(predict_one(running, png))
    assert predicted.prediction.request_id == "the-id"
    assert predicted.timing.decode_s > 0
    assert predicted.timing.queue_s >= 0
    assert predicted.timing.model_s > 0


def test_samples_are_drawn_as_the_checkpoint_says(harness, make_network, make_config, png) -> None:
    network, sampled = make_network(), PredictQuery(mode="stoch", samples=3, seed=1)
    config = make_config(network, sampler="balanced")
    balanced = EulerLoRA(Checkpoint(network, config, "sha256:0"), torch.device("cpu"))
    with harness(of=balanced) as running:
        body = asyncio.run(predict_one(running, png, sampled)).prediction
    with Image.open(BytesIO(png)) as picture:
        own, other = (
            balanced.predict([picture], "stoch", 3, 1, sampler=sampler).probabilities[0]
            for sampler in ("balanced", "independent")
        )
    found = torch.tensor(list(body.probabilities.values()), dtype=torch.float64)
    torch.testing.assert_close(found, own, rtol=0, atol=1e-5)
    assert (found - other).abs().max() > 1e-3


def test_a_full_queue_refuses_a_request_and_accepts_a_smaller_one(harness, png) -> None:
    async def story(harness: PipelineHarness) -> None:
        running = await harness.block_engine()
        accepted = asyncio.create_task(predict_one(harness, png, EIGHT))
        await harness.wait_for_rows(16)
        with pytest.raises(Overloaded) as raised:
            await predict_one(harness, png, EIGHT)
        assert raised.value.retry_after_s is not None
        small = asyncio.create_task(predict_one(harness, png))
        await harness.wait_for_rows(18)
        harness.gate.set()
        await running
        assert (await accepted).prediction.samples == 8
        assert (await small).prediction.mode == "det"
        assert (await predict_one(harness, png, EIGHT)).prediction.samples == 8

    with harness(max_waiting_rows=20) as running:
        asyncio.run(story(running))


def test_a_request_whose_deadline_passes_in_the_queue_is_never_run(harness, png) -> None:
    async def story(harness: PipelineHarness) -> None:
        running = await harness.block_engine()
        with pytest.raises(DeadlinePassed):
            await predict_one(harness, png)
        assert not harness.gate.is_set()  # it did not have to wait for the engine
        assert harness.queue.rows == 0
        harness.gate.set()
        await running

    with harness(deadline_s=0.3) as running:
        asyncio.run(story(running))
    assert running.passes == [1]


def test_a_request_whose_deadline_passes_before_it_is_decoded_is_never_run(harness, png) -> None:
    async def story(harness: PipelineHarness) -> None:
        harness.decoder.gate.clear()
        with pytest.raises(DeadlinePassed):
            await predict_one(harness, png)
        assert harness.decoder.entered.is_set()
        assert harness.queue.rows == 0

    with harness(deadline_s=0.3) as running:
        asyncio.run(story(running))
    assert running.passes == []


def test_what_runs_at_its_deadline_is_still_answered(harness, png) -> None:
    async def story(harness: PipelineHarness) -> None:
        harness.gate.clear()
        asking = asyncio.create_task(predict_one(harness, png))
        assert await asyncio.to_thread(harness.entered.wait, TIMEOUT_S)
        await asyncio.sleep(2.5)
        harness.gate.set()
        assert (await asking).prediction.mode == "det"

    with harness(deadline_s=2) as running:
        asyncio.run(story(running))


def test_a_client_that_leaves_while_queued_frees_its_rows_and_is_never_run(harness, png) -> None:
    async def story(harness: PipelineHarness) -> None:
        running = await harness.block_engine()
        gone = FakeRequest(png)
        leaving = asyncio.create_task(harness.pipeline.predict(gone.request, EIGHT))
        patient = asyncio.create_task(predict_one(harness, png))
        await harness.wait_for_rows(18)
        gone.disconnect()
        with pytest.raises(ClientDisconnect):
            await leaving
        assert harness.queue.rows == 2
        harness.gate.set()
        await running
        await patient

    with harness() as running:
        asyncio.run(story(running))
    assert running.passes == [1, 1]


def test_a_client_that_leaves_while_its_batch_runs_hurts_nobody(harness, png) -> None:
    async def story(harness: PipelineHarness) -> None:
        harness.gate.clear()
        gone = FakeRequest(png)
        leaving = asyncio.create_task(harness.pipeline.predict(gone.request, DET))
        assert await asyncio.to_thread(harness.entered.wait, TIMEOUT_S)
        gone.disconnect()
        with pytest.raises(ClientDisconnect):
            await leaving
        harness.gate.set()
        await predict_one(harness, png)

    with harness() as running:
        asyncio.run(story(running))


def test_a_client_that_leaves_during_decoding_is_never_run(harness, png) -> None:
    async def story(harness: PipelineHarness) -> None:
        harness.decoder.gate.clear()
        gone = FakeRequest(png)
        leaving = asyncio.create_task(harness.pipeline.predict(gone.request, DET))
        async with asyncio.timeout(TIMEOUT_S):
            await harness.decoder.entered.wait()
        assert harness.queue.rows == 2
        gone.disconnect()
        with pytest.raises(ClientDisconnect):
            await leaving
        assert harness.queue.rows == 0

    with harness() as running:
        asyncio.run(story(running))
    assert running.passes == []


def test_a_revision_that_was_replaced_still_answers_what_it_was_asked(
    harness, png, make_network, make_config
) -> None:
    network = make_network(seed=8)
    newer = EulerLoRA(
        Checkpoint(network, make_config(network), "sha256:newer"), torch.device("cpu")
    )

    async def story(harness: PipelineHarness) -> None:
        running = await harness.block_engine()
        before = asyncio.create_task(predict_one(harness, png))
        await harness.wait_for_rows(2)
        harness.models.replace(ServedModel.of(newer))
        after = asyncio.create_task(predict_one(harness, png))
        await harness.wait_for_rows(4)
        harness.gate.set()
        await running
        old, new = (await before).prediction, (await after).prediction
        assert (old.revision, new.revision) == (harness.served.revision, "sha256:newer")
        assert old.probabilities != new.probabilities
        wanted = (await predict_one(harness, png)).prediction
        assert wanted.probabilities == new.probabilities

    with harness() as running:
        asyncio.run(story(running))


def test_under_load_a_question_is_run_with_fewer_samples_and_says_so(
    harness, calibrated, png
) -> None:
    async def story(harness: PipelineHarness) -> None:
        running = await harness.block_engine()
        first = asyncio.create_task(predict_one(harness, png, EIGHT))
        await harness.wait_for_rows(16)
        second = asyncio.create_task(predict_one(harness, png, EIGHT))
        await harness.wait_for_rows(24)
        plain = asyncio.create_task(predict_one(harness, png))
        await harness.wait_for_rows(26)
        harness.gate.set()
        await running
        tasks = (first, second, plain)
        full, reduced, det = [(await task).prediction for task in tasks]
        assert (full.samples, full.trajectories, full.warnings) == (8, 16, ())
        assert (reduced.samples, reduced.trajectories) == (4, 8)
        assert (full.ood_threshold, reduced.ood_threshold) == (None, 0.4)
        assert reduced.warnings == ("samples reduced from 8 to 4 under load",)
        assert (det.samples, det.warnings) == (1, ())
        asked = PredictQuery(mode="stoch", samples=4)
        assert (await predict_one(harness, png, asked)).prediction.probabilities == pytest.approx(
            reduced.probabilities, abs=1e-6
        )

    with harness(of=calibrated, max_waiting_rows=30, fewer_samples=True) as running:
        asyncio.run(story(running))


def test_without_leave_to_do_so_samples_are_never_reduced(harness, calibrated, png) -> None:
    async def story(harness: PipelineHarness) -> None:
        running = await harness.block_engine()
        asking = [asyncio.create_task(predict_one(harness, png, EIGHT)) for _ in range(2)]
        await harness.wait_for_rows(32)
        harness.gate.set()
        await running
        assert [(await each).prediction.samples for each in asking] == [8, 8]

    with harness(of=calibrated, max_waiting_rows=40) as running:
        asyncio.run(story(running))


class Audit:
    """An audit log that keeps what it is told, or refuses."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.entries: list[AuditEntry] = []
        self.refusal = refusal

    async def record(self, entry: AuditEntry) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.entries.append(entry)


def test_a_decision_is_recorded_and_counted_before_it_is_sent(harness, png) -> None:
    audit = Audit()
    with harness(audit) as running:
        predicted = asyncio.run(predict_one(running, png))
    assert audit.entries == [AuditEntry(predicted.prediction, None, png)]
    assert running.predictions == [(predicted.prediction, predicted.timing)]


def test_a_decision_that_cannot_be_recorded_is_neither_given_nor_counted(harness, png) -> None:
    with harness(Audit(AuditUnavailable("full"))) as running, pytest.raises(AuditUnavailable):
        asyncio.run(predict_one(running, png))
    assert running.predictions == []


def test_a_lost_device_makes_every_request_unready(harness, png) -> None:
    def lose(*_: object) -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    with harness() as running:
        hook = running.served.model.network.register_forward_pre_hook(lose)
        try:
            for _ in range(2):
                with pytest.raises(NotReady):
                    asyncio.run(predict_one(running, png))
        finally:
            hook.remove()
    assert len(running.passes) == 1


def test_a_batch_without_memory_is_split_and_a_single_image_without_it_is_a_503(
    harness, png
) -> None:
    def fill(_: object, inputs: tuple[torch.Tensor, ...]) -> None:
        if len(inputs[0]) > 2 or len(inputs[1]) > 100:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    async def story(harness: PipelineHarness) -> None:
        running = await harness.block_engine()
        asking = [asyncio.create_task(predict_one(harness, png)) for _ in range(4)]
        await harness.wait_for_rows(8)
        harness.gate.set()
        await running
        assert len({(await each).prediction.msp for each in asking}) == 1
        with pytest.raises(OutOfMemory):
            await predict_one(harness, png, PredictQuery(mode="stoch", samples=64))
        await predict_one(harness, png)

    with harness() as running:
        hook = running.served.model.network.register_forward_pre_hook(fill)
        try:
            asyncio.run(story(running))
        finally:
            hook.remove()
    assert running.passes[:4] == [1, 4, 2, 2]

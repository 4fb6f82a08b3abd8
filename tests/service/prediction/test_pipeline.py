"""The request path while the engine is busy: capacity, deadlines, disconnects, and faults."""

import asyncio
from collections.abc import Callable
from io import BytesIO
from types import SimpleNamespace
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


def test_a_prediction_has_a_timing(harness, png) -> None:
    with harness() as running:
        predicted = asyncio.run(predict_one(running, png))
    assert predicted.prediction.request_id == "the-id"
    assert predicted.timing.decode_s > 0
    assert predicted.timing.queue_s >= 0
    assert predicted.timing.model_s > 0


def test_samples_are_drawn_with_the_sampler_of_the_checkpoint(
    harness, make_network, make_config, png
) -> None:
    network, sampled = make_network(), PredictQuery(mode="stoch", samples=3, seed=1)
    config = make_config(network, sampler="balanced")
    balanced = EulerLoRA(Checkpoint(network, config, "sha256:0"), torch.device("cpu"))
    with harness(of=balanced) as running:
        body = asyncio.run(predict_one(running, png, sampled)).prediction
    with Image.open(BytesIO(png)) as image:
        expected, other = (
            balanced.predict([image], "stoch", 3, 1, sampler=sampler).probabilities[0]
            for sampler in ("balanced", "independent")
        )
    actual = torch.tensor(list(body.probabilities.values()), dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    assert (actual - other).abs().max() > 1e-3


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


def test_a_request_whose_deadline_passes_in_the_queue_never_runs(harness, png) -> None:
    async def story(harness: PipelineHarness) -> None:
        running = await harness.block_engine()
        with pytest.raises(DeadlinePassed):
            await predict_one(harness, png)
        assert not harness.gate.is_set()  # the engine is still blocked
        assert harness.queue.rows == 0
        harness.gate.set()
        await running

    with harness(deadline_s=0.3) as running:
        asyncio.run(story(running))
    assert running.passes == [1]


def test_a_request_whose_deadline_passes_during_decoding_never_runs(harness, png) -> None:
    async def story(harness: PipelineHarness) -> None:
        harness.decoder.gate.clear()
        with pytest.raises(DeadlinePassed):
            await predict_one(harness, png)
        assert harness.decoder.entered.is_set()
        assert harness.queue.rows == 0

    with harness(deadline_s=0.3) as running:
        asyncio.run(story(running))
    assert running.passes == []


def test_a_pass_that_runs_at_the_deadline_is_finished(harness, png) -> None:
    timers: list[Callable[[], object]] = []

    async def story(harness: PipelineHarness) -> None:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def capture_deadline(delay: float, callback: Any, *arguments: Any) -> Any:
            if getattr(callback, "__name__", "") == "cancel":
                timers.append(callback)
            return call_later(delay, callback, *arguments)

        loop.call_later = capture_deadline  # type: ignore[method-assign]
        harness.gate.clear()
        task = asyncio.create_task(predict_one(harness, png))
        assert await asyncio.to_thread(harness.entered.wait, TIMEOUT_S)
        (expire,) = timers
        expire()
        harness.gate.set()
        assert (await task).prediction.mode == "det"

    with harness() as running:
        asyncio.run(story(running))


def test_the_deadline_starts_when_the_body_is_complete(harness, png, monkeypatch) -> None:
    now = 1000.0
    monkeypatch.setattr("service.prediction.pipeline.time", SimpleNamespace(monotonic=lambda: now))

    async def story(harness: PipelineHarness) -> None:
        nonlocal now
        accepted = harness.pipeline._validated(FakeRequest(png).request, DET)
        now += 3600  # a slow upload
        assert harness.pipeline._accepted(accepted).deadline == now + TIMEOUT_S

    with harness() as running:
        asyncio.run(story(running))


def test_a_disconnect_in_the_queue_frees_the_rows(harness, png) -> None:
    async def story(harness: PipelineHarness) -> None:
        running = await harness.block_engine()
        fake = FakeRequest(png)
        cancelled = asyncio.create_task(harness.pipeline.predict(fake.request, EIGHT))
        other = asyncio.create_task(predict_one(harness, png))
        await harness.wait_for_rows(18)
        fake.disconnect()
        with pytest.raises(ClientDisconnect):
            await cancelled
        assert harness.queue.rows == 2
        harness.gate.set()
        await running
        await other

    with harness() as running:
        asyncio.run(story(running))
    assert running.passes == [1, 1]


def test_a_disconnect_during_a_pass_does_not_affect_others(harness, png) -> None:
    async def story(harness: PipelineHarness) -> None:
        harness.gate.clear()
        fake = FakeRequest(png)
        cancelled = asyncio.create_task(harness.pipeline.predict(fake.request, DET))
        assert await asyncio.to_thread(harness.entered.wait, TIMEOUT_S)
        fake.disconnect()
        with pytest.raises(ClientDisconnect):
            await cancelled
        harness.gate.set()
        await predict_one(harness, png)

    with harness() as running:
        asyncio.run(story(running))


def test_a_disconnect_during_decoding_prevents_the_run(harness, png) -> None:
    async def story(harness: PipelineHarness) -> None:
        harness.decoder.gate.clear()
        fake = FakeRequest(png)
        cancelled = asyncio.create_task(harness.pipeline.predict(fake.request, DET))
        async with asyncio.timeout(TIMEOUT_S):
            await harness.decoder.entered.wait()
        assert harness.queue.rows == 2
        fake.disconnect()
        with pytest.raises(ClientDisconnect):
            await cancelled
        assert harness.queue.rows == 0

    with harness() as running:
        asyncio.run(story(running))
    assert running.passes == []


def test_a_replaced_revision_finishes_its_requests(harness, png, make_network, make_config) -> None:
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
        expected = (await predict_one(harness, png)).prediction
        assert expected.probabilities == new.probabilities

    with harness() as running:
        asyncio.run(story(running))


def test_under_load_a_request_gets_fewer_samples_and_a_warning(harness, calibrated, png) -> None:
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
        query = PredictQuery(mode="stoch", samples=4)
        assert (await predict_one(harness, png, query)).prediction.probabilities == pytest.approx(
            reduced.probabilities, abs=1e-6
        )

    with harness(of=calibrated, max_waiting_rows=30, fewer_samples=True) as running:
        asyncio.run(story(running))


def test_samples_are_reduced_only_if_the_settings_allow_it(harness, calibrated, png) -> None:
    async def story(harness: PipelineHarness) -> None:
        running = await harness.block_engine()
        tasks = [asyncio.create_task(predict_one(harness, png, EIGHT)) for _ in range(2)]
        await harness.wait_for_rows(32)
        harness.gate.set()
        await running
        assert [(await task).prediction.samples for task in tasks] == [8, 8]

    with harness(of=calibrated, max_waiting_rows=40) as running:
        asyncio.run(story(running))


class Audit:
    """An audit log that stores entries in memory, or fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.entries: list[AuditEntry] = []
        self.failure = failure

    async def record(self, entry: AuditEntry) -> None:
        if self.failure is not None:
            raise self.failure
        self.entries.append(entry)


def test_a_prediction_is_recorded_and_counted_before_it_is_returned(harness, png) -> None:
    audit = Audit()
    with harness(audit) as running:
        predicted = asyncio.run(predict_one(running, png))
    assert audit.entries == [AuditEntry(predicted.prediction, None, png)]
    assert running.predictions == [(predicted.prediction, predicted.timing)]


def test_a_prediction_that_cannot_be_recorded_is_neither_returned_nor_counted(harness, png) -> None:
    with harness(Audit(AuditUnavailable("full"))) as running, pytest.raises(AuditUnavailable):
        asyncio.run(predict_one(running, png))
    assert running.predictions == []


def test_after_a_lost_device_every_request_is_not_ready(harness, png) -> None:
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


def test_a_batch_without_memory_is_split_and_a_single_image_fails(harness, png) -> None:
    def fill(_: object, inputs: tuple[torch.Tensor, ...]) -> None:
        if len(inputs[0]) > 2 or len(inputs[1]) > 100:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    async def story(harness: PipelineHarness) -> None:
        running = await harness.block_engine()
        tasks = [asyncio.create_task(predict_one(harness, png)) for _ in range(4)]
        await harness.wait_for_rows(8)
        harness.gate.set()
        await running
        assert len({(await task).prediction.msp for task in tasks}) == 1
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

"""Deadlines and disconnects, in every stage of the request path."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from eulerlora_contract.queries import PredictQuery
from tests.problems import raises_problem
from tests.service.harness import DET, TIMEOUT_S, FakeRequest, PipelineHarness, predict_one

pytestmark = pytest.mark.anyio

EIGHT = PredictQuery(mode="stoch", samples=8)


async def test_a_request_whose_deadline_passes_in_the_queue_never_runs(harness, png) -> None:
    with harness(deadline_s=0.3) as started:
        running = await started.block_engine()
        with raises_problem("deadline_passed"):
            await predict_one(started, png)
        assert not started.gate.is_set()  # the engine is still blocked
        assert started.queue.rows == 0
        started.gate.set()
        await running
    assert started.passes == [1]


async def test_a_request_whose_deadline_passes_during_decoding_never_runs(harness, png) -> None:
    with harness(deadline_s=0.3) as started:
        started.decoder.gate.clear()
        with raises_problem("deadline_passed"):
            await predict_one(started, png)
        assert started.decoder.entered.is_set()
        assert started.queue.rows == 0
    assert started.passes == []


def test_a_pass_that_runs_at_the_deadline_is_finished(harness, png) -> None:
    timers: list[Callable[[], object]] = []

    async def scenario(harness: PipelineHarness) -> None:
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
        assert (await task).mode == "det"

    with harness() as running:
        asyncio.run(scenario(running))


def test_the_deadline_starts_when_the_body_is_complete(harness, png, monkeypatch) -> None:
    late_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late_s)
    monkeypatch.setattr("service.prediction.time", clock)

    async def scenario(harness: PipelineHarness) -> None:
        fake = FakeRequest(png)
        receive = fake.request._receive

        async def slow_receive() -> Any:
            nonlocal late_s
            message = await receive()
            late_s = 100 * TIMEOUT_S  # a slow upload
            return message

        fake.request._receive = slow_receive
        assert (await harness.pipeline.predict(fake.request, DET)).mode == "det"
        assert fake.body_reads == 1

    with harness() as running:
        asyncio.run(scenario(running))


async def test_a_disconnect_in_the_queue_frees_the_rows(harness, png) -> None:
    with harness() as started:
        running = await started.block_engine()
        fake = FakeRequest(png)
        cancelled = asyncio.create_task(started.pipeline.predict(fake.request, EIGHT))
        other = asyncio.create_task(predict_one(started, png))
        await started.wait_for_rows(18)
        fake.disconnect()
        with pytest.raises(ClientDisconnect):
            await cancelled
        assert started.queue.rows == 2
        started.gate.set()
        await running
        await other
    assert started.passes == [1, 1]


async def test_a_disconnect_during_a_pass_does_not_affect_others(harness, png) -> None:
    with harness() as started:
        started.gate.clear()
        fake = FakeRequest(png)
        cancelled = asyncio.create_task(started.pipeline.predict(fake.request, DET))
        assert await asyncio.to_thread(started.entered.wait, TIMEOUT_S)
        fake.disconnect()
        with pytest.raises(ClientDisconnect):
            await cancelled
        started.gate.set()
        await predict_one(started, png)


async def test_a_disconnect_during_decoding_prevents_the_run(harness, png) -> None:
    with harness() as started:
        started.decoder.gate.clear()
        fake = FakeRequest(png)
        cancelled = asyncio.create_task(started.pipeline.predict(fake.request, DET))
        async with asyncio.timeout(TIMEOUT_S):
            await started.decoder.entered.wait()
        assert started.queue.rows == 2
        fake.disconnect()
        with pytest.raises(ClientDisconnect):
            await cancelled
        assert started.queue.rows == 0
    assert started.passes == []

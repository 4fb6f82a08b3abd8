"""Clients and requests that share the service, in the whole request path."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from service.decoding.messages import DecodedInput, DecodeJob
from tests.problems import raises_problem
from tests.service.harness import DET, FakeRequest, PipelineHarness, predict_one

pytestmark = pytest.mark.anyio

BOUNDARY = "boundary"


def batch_of(png: bytes, count: int) -> FakeRequest:
    part = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    ).encode()
    body = b"".join([part + png + b"\r\n"] * count) + f"--{BOUNDARY}--\r\n".encode()
    fake = FakeRequest(body)
    fake.request.scope["headers"] = [
        (b"content-type", f"multipart/form-data; boundary={BOUNDARY}".encode()),
        (b"content-length", b"%d" % len(body)),
    ]
    return fake


def from_client(fake: FakeRequest, address: str) -> FakeRequest:
    fake.request.scope["client"] = (address, 1)
    return fake


class StepDecoder:
    """A decoder of which a test permits every image; `order` has the requests of the images."""

    def __init__(self, harness: PipelineHarness) -> None:
        self._decoder = harness.decoder
        self._permits = asyncio.Semaphore(0)
        self.order: list[bytes] = []
        harness.pipeline._decoder = self  # type: ignore[assignment]

    async def decode(self, job: DecodeJob, *arguments: Any, client: str) -> DecodedInput:
        self.order.append(job.content)
        await self._permits.acquire()
        decoded: DecodedInput = await self._decoder.decode(job, *arguments, client=client)
        return decoded

    def permit(self, count: int) -> None:
        for _ in range(count):
            self._permits.release()


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_one_image_waits_for_few_images_of_a_batch_of_another_client(harness, png) -> None:
    with harness() as started:
        decoder = StepDecoder(started)
        batch = from_client(batch_of(png, 8), "10.0.0.1")
        many = asyncio.create_task(started.pipeline.predict_batch(batch.request, DET))
        await settle()
        single = from_client(FakeRequest(png + b"single"), "10.0.0.2")
        one = asyncio.create_task(started.pipeline.predict(single.request, DET))
        await settle()
        decoder.permit(2)
        await settle()
        assert png + b"single" in decoder.order[2:4]
        decoder.permit(100)
        assert (await one).label
        assert all(hasattr(result, "label") for result in await many)


async def test_the_wait_for_a_decoder_counts_as_time_in_the_queue(
    harness, png, monkeypatch
) -> None:
    late_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late_s)
    monkeypatch.setattr("service.prediction.time", clock)
    with harness() as started:
        decoder = StepDecoder(started)
        tasks = [asyncio.create_task(predict_one(started, png)) for _ in range(3)]
        await settle()
        assert len(decoder.order) == 2  # the third waits for a decoder
        late_s = 50.0
        decoder.permit(3)
        await asyncio.gather(*tasks)
    assert all(completed.queue_s >= 50 - completed.decode_s for completed in started.predictions)


async def test_a_client_that_used_its_decoding_time_is_refused_and_others_are_not(
    harness, png
) -> None:
    with harness(decoding={"client_s_per_minute": 60}) as started:

        async def predict(address: str) -> None:
            request = from_client(FakeRequest(png), address).request
            await started.pipeline.predict(request, DET)

        started.decoder.cpu_s = 90.0  # as measured; the header promised less
        await predict("10.0.0.1")
        started.decoder.cpu_s = 0.001
        with raises_problem("quota_exceeded") as raised:
            await predict("10.0.0.1")
        assert raised.value.retry_after_s == pytest.approx(30, abs=5)
        await predict("10.0.0.2")
        assert started.queue.rows == 0

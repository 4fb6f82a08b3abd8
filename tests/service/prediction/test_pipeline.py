"""The request path: capacity, load, revisions, the audit log, and device faults."""

import asyncio
from io import BytesIO

import pytest
import torch
from PIL import Image

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import Checkpoint
from eulerlora_contract.problems import Problem
from eulerlora_contract.queries import PredictQuery
from service.inference.engine import ServedModel
from tests.problems import raises_problem
from tests.service.harness import Recorder, predict_one

pytestmark = pytest.mark.anyio

EIGHT = PredictQuery(mode="stoch", samples=8)


def test_samples_are_drawn_with_the_sampler_of_the_checkpoint(
    harness, make_network, make_config, png
) -> None:
    network, sampled = make_network(), PredictQuery(mode="stoch", samples=3, seed=1)
    config = make_config(network, sampler="balanced")
    balanced = EulerLoRA(Checkpoint(network, config, "sha256:0"), torch.device("cpu"))
    with harness(of=balanced) as running:
        body = asyncio.run(predict_one(running, png, sampled))
    with Image.open(BytesIO(png)) as image:
        expected, other = (
            balanced.predict([image], "stoch", 3, 1, sampler=sampler).probabilities[0]
            for sampler in ("balanced", "independent")
        )
    actual = torch.tensor(list(body.probabilities.values()), dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    assert (actual - other).abs().max() > 1e-3


async def test_a_full_queue_refuses_a_request_and_accepts_a_smaller_one(harness, png) -> None:
    with harness(max_waiting_rows=40) as started:
        running = await started.block_engine()
        accepted = asyncio.create_task(predict_one(started, png, EIGHT))
        await started.wait_for_rows(16)
        with raises_problem("overloaded") as raised:
            await predict_one(started, png, EIGHT)
        assert raised.value.retry_after_s is not None
        small = asyncio.create_task(predict_one(started, png))
        await started.wait_for_rows(18)
        started.gate.set()
        await running
        assert (await accepted).samples == 8
        assert (await small).mode == "det"
        assert (await predict_one(started, png, EIGHT)).samples == 8


async def test_a_replaced_revision_finishes_its_requests(
    harness, png, make_network, make_config
) -> None:
    network = make_network(seed=8)
    newer = EulerLoRA(
        Checkpoint(network, make_config(network), "sha256:newer"), torch.device("cpu")
    )

    with harness() as started:
        running = await started.block_engine()
        before = asyncio.create_task(predict_one(started, png))
        await started.wait_for_rows(2)
        started.models.replace(ServedModel(newer))
        after = asyncio.create_task(predict_one(started, png))
        await started.wait_for_rows(4)
        started.gate.set()
        await running
        old, new = await before, await after
        assert (old.revision, new.revision) == (started.served.model.revision, "sha256:newer")
        assert old.probabilities != new.probabilities
        expected = await predict_one(started, png)
        assert expected.probabilities == new.probabilities


def test_a_prediction_is_recorded_and_counted_before_it_is_returned(harness, png) -> None:
    recorder = Recorder()
    with harness(recorder) as running:
        body = asyncio.run(predict_one(running, png))
    ((image, recorded),) = recorder.images
    assert (recorded, image.prediction, image.file) == (body, body, png)
    assert [completed.prediction for completed in running.predictions] == [body]


def test_a_prediction_that_cannot_be_recorded_is_neither_returned_nor_counted(harness, png) -> None:
    full = Problem("full", code="audit_unavailable")
    with harness(Recorder(full)) as running, raises_problem("audit_unavailable"):
        asyncio.run(predict_one(running, png))
    assert running.predictions == []

"""The request path: capacity, load, revisions, the audit log, and device faults."""

import asyncio
from io import BytesIO

import pytest
import torch
from PIL import Image

from eulerlora.checkpoint.files import Checkpoint
from eulerlora.model import EulerLoRA
from eulerlora_contract.answers import Threshold, WarningCode
from eulerlora_contract.problems import (
    AuditUnavailable,
    Overloaded,
)
from eulerlora_contract.queries import PredictQuery
from service.audit.log import AuditEntry
from service.inference.engine import ServedModel
from tests.conftest import ENERGY
from tests.service.harness import Audit, predict_one

pytestmark = pytest.mark.anyio

EIGHT = PredictQuery(mode="stoch", samples=8)


@pytest.fixture
def calibrated(make_network, make_config) -> EulerLoRA:
    """A model with thresholds for det, and for stoch with 1, 2, 4 and 8 samples."""
    network = make_network()
    options = (("det", 1), ("stoch", 1), ("stoch", 2), ("stoch", 4), ("stoch", 8))
    thresholds = tuple(
        Threshold(
            mode=mode, samples=samples, msp=samples / 10, kept=0.9, images=9, data="test",
            energy=ENERGY,
        )
        for mode, samples in options
    )  # fmt: skip
    checkpoint = Checkpoint(network, make_config(network, thresholds=thresholds), "sha256:0")
    return EulerLoRA(checkpoint, torch.device("cpu"))


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
        with pytest.raises(Overloaded) as raised:
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
        assert (old.revision, new.revision) == (started.served.revision, "sha256:newer")
        assert old.probabilities != new.probabilities
        expected = await predict_one(started, png)
        assert expected.probabilities == new.probabilities


async def test_under_load_a_request_gets_fewer_samples_and_a_warning(
    harness, calibrated, png
) -> None:
    with harness(of=calibrated, max_waiting_rows=60, fewer_samples=True) as started:
        running = await started.block_engine()
        first = asyncio.create_task(predict_one(started, png, EIGHT))
        await started.wait_for_rows(16)
        second = asyncio.create_task(predict_one(started, png, EIGHT))
        await started.wait_for_rows(24)
        plain = asyncio.create_task(predict_one(started, png))
        await started.wait_for_rows(26)
        started.gate.set()
        await running
        tasks = (first, second, plain)
        full, reduced, det = [await task for task in tasks]
        assert (full.samples, full.trajectories, full.warnings) == (8, 16, ())
        assert (reduced.samples, reduced.trajectories) == (4, 8)
        assert (full.ood_threshold, reduced.ood_threshold) == (0.8, 0.4)
        (warning,) = reduced.warnings
        assert warning.code == WarningCode.SAMPLES_REDUCED
        assert warning.message == "samples reduced from 8 to 4 under load"
        assert (det.samples, det.warnings) == (1, ())
        query = PredictQuery(mode="stoch", samples=4)
        assert (await predict_one(started, png, query)).probabilities == pytest.approx(
            reduced.probabilities, abs=1e-6
        )


def test_a_prediction_is_recorded_and_counted_before_it_is_returned(harness, png) -> None:
    audit = Audit()
    with harness(audit) as running:
        body = asyncio.run(predict_one(running, png))
    assert audit.entries == [AuditEntry(body, None, png)]
    assert [completed.prediction for completed in running.predictions] == [body]


def test_a_prediction_that_cannot_be_recorded_is_neither_returned_nor_counted(harness, png) -> None:
    with harness(Audit(AuditUnavailable("full"))) as running, pytest.raises(AuditUnavailable):
        asyncio.run(predict_one(running, png))
    assert running.predictions == []

"""Models of all methods, served side by side: every request gets its model's answer."""

import asyncio

import pytest
import torch
from PIL import Image

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import Checkpoint, save_checkpoint
from eulerlora_contract.queries import PredictQuery
from lab.tests.methods.settings import METHODS
from service.lifecycle.loading import CheckpointSource
from tests.conftest import config_of, random_network
from tests.service.harness import FakeRequest, PipelineHarness

CPU = torch.device("cpu")
TOLERANCE = 1e-5


def named(method: str) -> str:
    return method.replace(",", "").replace(" ", "-")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[EulerLoRA]:
    """A model of every method, loaded as the service does; `other` has another backbone and views
    of the details of an image.
    """
    loaded, folder = list[EulerLoRA](), tmp_path_factory.mktemp("checkpoints")
    for name, method in METHODS.items():
        network = random_network(method=method)
        with torch.no_grad():
            for _, parameter in network.adapter_parameters():
                parameter.add_(0.01 * len(loaded))
        path = folder / named(name)
        save_checkpoint(path, network, config_of(network, name=named(name)), "# card\n")
        loaded.append(CheckpointSource(path).load(loaded).model)
    network = random_network(seed=9)
    preprocessing = network.preprocessing.model_copy(update={"canvas": (60, 40)})
    config = config_of(network, name="other", preprocessing=preprocessing, views=8)
    return [*loaded, EulerLoRA(Checkpoint(network, config, "sha256:other"), CPU)]


QUERIES = ({"mode": "det"}, {"mode": "stoch", "samples": 3, "seed": 8})


def test_requests_of_all_methods_at_once_get_the_answers_they_get_alone(
    models: list[EulerLoRA], photo: Image.Image, png: bytes
) -> None:
    first, *others = models
    harness = PipelineHarness(first, (), {"max_batch_rows": 1000}, others)
    queries = [
        PredictQuery.model_validate({"model": model.config.name, **query})
        for model in models
        for query in QUERIES
    ]
    rows = sum(2 * (query.samples or 1) for query in queries)

    async def answers() -> list[list[float]]:
        with harness.running():
            blocked = await harness.block_engine()
            tasks = [
                asyncio.create_task(harness.pipeline.predict(FakeRequest(png).request, query))
                for query in queries
            ]
            await harness.wait_for_rows(rows)
            harness.gate.set()
            await blocked
            results = [await task for task in tasks]
        return [list(result.probabilities.values()) for result in results]

    actual = asyncio.run(answers())
    alone = [
        model.predict([photo], **query).probabilities[0].tolist()
        for model in models
        for query in QUERIES
    ]
    assert actual == [pytest.approx(expected, abs=TOLERANCE) for expected in alone]

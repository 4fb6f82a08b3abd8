"""Faults of the model or its device, as clients of the application see them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from eulerlora import EulerLoRA
from tests.service.conftest import app_of, encoded

PNG = {"Content-Type": "image/png"}


@pytest.fixture
def broken_model(checkpoint_folder: Path) -> EulerLoRA:
    """A model that only this test uses, and that it may break."""
    return EulerLoRA.load(checkpoint_folder, "cpu")


@pytest.fixture
def client(broken_model) -> Iterator[TestClient]:
    with TestClient(app_of(broken_model)) as client:
        yield client


@pytest.fixture
def black() -> bytes:
    """A black image, which hooks recognise in the model's input."""
    return encoded(Image.new("RGB", (40, 40)), "PNG")


def is_black(images: torch.Tensor) -> torch.Tensor:
    """A mask (images,) of the black images in the network's input."""
    return (images == 0).flatten(1).all(dim=1)


def batch_results(client: TestClient, *images: bytes) -> list[dict[str, Any]]:
    """The results of a batch without the request ids."""
    files = [("files", (f"{number}.png", image)) for number, image in enumerate(images)]
    results = client.post("/predict/batch", files=files).json()["results"]
    for result in results:
        result.pop("request_id")
    return results


def problem_count(client: TestClient, code: str) -> str:
    """The metric that counts a problem."""
    name = f'eulerlora_refusals_total{{reason="{code}"}} '
    lines = client.get("/metrics").text.splitlines()
    (line,) = [line for line in lines if line.startswith(name)]
    return line.removeprefix(name)


def test_an_image_with_non_finite_logits_is_a_counted_500_and_the_others_are_unchanged(
    client, broken_model, png, photo, black
) -> None:
    other = encoded(photo.rotate(90), "PNG")
    one, two = batch_results(client, png, other)

    def insert_nan(_: object, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        images, *rest = inputs
        return (images.masked_fill(is_black(images)[:, None, None, None], torch.nan), *rest)

    handle = broken_model.network.backbone.conv_proj.register_forward_pre_hook(insert_nan)
    first, bad, last = batch_results(client, png, black, other)
    assert (bad["status"], bad["code"]) == (500, "model_failure")
    for before, after in ((one, first), (two, last)):
        assert after["probabilities"] == pytest.approx(before["probabilities"], abs=1e-6)
    assert client.post("/predict", content=black, headers=PNG).status_code == 500
    assert problem_count(client, "model_failure") == "2.0"
    handle.remove()
    assert client.post("/predict", content=black, headers=PNG).status_code == 200

"""What the model or its device does wrong, as the clients of a whole application see it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from eulerlora.model import EulerLoRA

PNG = {"Content-Type": "image/png"}


@pytest.fixture
def own_model(checkpoint_folder: Path) -> EulerLoRA:
    """The test's own, to be spoilt."""
    return EulerLoRA.load(checkpoint_folder, "cpu")


@pytest.fixture
def client(own_model, make_app) -> Iterator[TestClient]:
    with TestClient(make_app(own_model)) as client:
        yield client


@pytest.fixture
def black(encode) -> bytes:
    """A picture that is 0 everywhere, so that the model's input tells it from others."""
    return encode(Image.new("RGB", (40, 40)), "PNG")


def is_black(images: torch.Tensor) -> torch.Tensor:
    """(images,) of the network's input, where each is the black picture."""
    return (images == 0).flatten(1).all(dim=1)


def answers(client: TestClient, *pictures: bytes) -> list[dict[str, Any]]:
    """The results of a batch without what belongs to the request alone."""
    files = [("files", (f"{number}.png", each)) for number, each in enumerate(pictures)]
    results = client.post("/predict/batch", files=files).json()["results"]
    return [{key: each[key] for key in each if key != "request_id"} for each in results]


def failures(client: TestClient, code: str) -> str:
    """How often a problem was counted."""
    name = f'eulerlora_refusals_total{{reason="{code}"}} '
    (line,) = [each for each in client.get("/metrics").text.splitlines() if each.startswith(name)]
    return line.removeprefix(name)


def test_an_image_without_a_finite_answer_is_a_counted_500_and_its_neighbours_are_unchanged(
    client, own_model, png, photo, encode, black
) -> None:
    other = encode(photo.rotate(90), "PNG")
    one, two = answers(client, png, other)

    def spoil(_: object, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        images, *rest = inputs
        return (images.masked_fill(is_black(images)[:, None, None, None], torch.nan), *rest)

    handle = own_model.network.register_forward_pre_hook(spoil)
    first, bad, last = answers(client, png, black, other)
    assert (bad["status"], bad["code"]) == (500, "model_failure")
    for before, after in ((one, first), (two, last)):
        assert after["probabilities"] == pytest.approx(before["probabilities"], abs=1e-6)
    assert client.post("/predict", content=black, headers=PNG).status_code == 500
    assert failures(client, "model_failure") == "2.0"
    handle.remove()
    assert client.post("/predict", content=black, headers=PNG).status_code == 200


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RuntimeError("made up"), 500, "model_failure"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), 503, "out_of_memory"),
    ],
)
def test_an_image_that_breaks_its_batch_is_told_so_and_its_neighbours_are_answered(
    client, own_model, png, black, error, status, code
) -> None:
    (one,) = answers(client, png)

    def fail(_: object, inputs: tuple[torch.Tensor, ...]) -> None:
        if is_black(inputs[0]).any():
            raise error

    handle = own_model.network.register_forward_pre_hook(fail)
    first, bad = answers(client, png, black)
    assert (bad["status"], bad["code"]) == (status, code)
    assert first["probabilities"] == pytest.approx(one["probabilities"], abs=1e-6)
    assert failures(client, code) == "1.0"
    alone = client.post("/predict", content=black, headers=PNG)
    assert (alone.status_code, alone.json()["code"]) == (status, code)
    assert "made up" not in alone.text
    handle.remove()
    assert client.post("/predict", content=black, headers=PNG).status_code == 200

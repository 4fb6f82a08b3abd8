"""GET /models and GET /models/{name}."""

import pytest
import torch
from starlette.testclient import TestClient

from eulerlora.checkpoint import Checkpoint
from eulerlora.model import EulerLoRA
from service.app import create_service
from service.inference.models import ServedModel, ServedModels
from service.lifecycle.phase import Lifecycle
from service.settings import ServiceSettings


def test_the_list_tells_name_revision_classes_and_default(client, model) -> None:
    response = client.get("/models")
    assert response.status_code == 200
    assert response.json() == {
        "models": [
            {
                "name": "tiny",
                "revision": model.revision,
                "classes": ["bkl", "mel", "nv"],
                "default": True,
            }
        ]
    }


def test_a_model_tells_its_classes_limits_thresholds_and_provenance(client, model) -> None:
    response = client.get("/models/tiny")
    assert response.status_code == 200
    body = response.json()
    assert set(body) == {
        "name", "revision", "classes", "adapters", "input_size", "image_limits",
        "max_body_bytes", "max_samples", "thresholds", "provenance",
    }  # fmt: skip
    assert (body["name"], body["revision"]) == ("tiny", model.revision)
    assert body["classes"] == [
        {"name": name, "description": name.upper()} for name in ("bkl", "mel", "nv")
    ]
    assert (body["adapters"], body["input_size"], body["max_samples"]) == (2, 32, 64)
    assert body["image_limits"] == {"min_side": 32, "max_side": 8192, "max_pixels": 24_000_000}
    assert {(each["mode"], each["samples"]) for each in body["thresholds"]} == {
        ("det", 1),
        ("stoch", 4),
    }
    assert body["thresholds"] == [each.model_dump() for each in model.config.thresholds]
    assert body["provenance"] == model.config.provenance


def test_the_limits_told_are_the_operators(model, make_app) -> None:
    limits = {"min_side": 8, "max_side": 100, "max_pixels": 9000}
    with TestClient(make_app(model, images=limits, bodies={"max_bytes": 1234})) as client:
        body = client.get("/models/tiny").json()
    assert body["image_limits"] == limits
    assert body["max_body_bytes"] == 1234


@pytest.mark.parametrize("name", ["xyzzy", "TINY", "tiny%20", "%C3%A9"])
def test_an_unknown_model_is_a_404_that_does_not_repeat_its_name(client, refused, name) -> None:
    response = client.get(f"/models/{name}")
    refused(response, 404, "unknown_model")
    assert "xyzzy" not in response.text


def test_of_two_models_each_answers_under_its_own_name(
    make_network, make_config, photo, encode
) -> None:
    def served(name: str, seed: int) -> ServedModel:
        network = make_network(seed=seed)
        checkpoint = Checkpoint(network, make_config(network, name=name), f"sha256:{seed}")
        return ServedModel.of(EulerLoRA(checkpoint, torch.device("cpu")))

    models = ServedModels([served("first", 1), served("second", 2)])
    data = {"content": encode(photo, "PNG"), "headers": {"Content-Type": "image/png"}}
    with TestClient(create_service(models, ServiceSettings(), Lifecycle()).application) as client:
        told = client.get("/models").json()["models"]
        default = client.post("/predict", **data).json()
        first = client.post("/predict?model=first", **data).json()
        second = client.post("/predict?model=second", **data).json()
    assert [(each["name"], each["default"]) for each in told] == [
        ("first", True),
        ("second", False),
    ]
    assert (default["model"], second["model"]) == ("first", "second")
    assert default["probabilities"] == first["probabilities"] != second["probabilities"]
    assert (first["revision"], second["revision"]) == ("sha256:1", "sha256:2")

"""`coverage=` on /predict, /predict/batch and /triage."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from eulerlora.checkpoint.files import Checkpoint
from eulerlora.model import EulerLoRA
from eulerlora.settings import RuntimeSettings
from eulerlora_client.contract.answers import ClassName
from tests.service.conftest import app_of

NAMES = ("bkl", "mel", "nv", "bcc", "akiec")
HEADERS = {"Content-Type": "image/png"}
THRESHOLDS = (0.9, 0.4, 1.0, 0.75, 0.0)


def calibration(**changes: object) -> dict[str, Any]:
    fields = {
        "coverage": 0.9, "mode": "det", "samples": 1, "sampler": "independent",
        "precision": "float32", "thresholds": THRESHOLDS, "unit": "lesion",
        "units": (60, 70, 3, 20, 30), "data": "HAM10000, calibration part",
        "data_sha256": "0" * 64,
    }  # fmt: skip
    return fields | changes


@pytest.fixture(scope="module")
def checkpoint(make_network, make_config) -> Checkpoint:
    network = make_network(classes=len(NAMES))
    config = make_config(
        network,
        classes=tuple(ClassName(name=name, description=name.upper()) for name in NAMES),
        prediction_sets=(calibration(), calibration(mode="stoch", samples=2)),
    )
    return Checkpoint(network, config, "sha256:five")


def model_of(checkpoint: Checkpoint, **runtime: Any) -> EulerLoRA:
    return EulerLoRA(checkpoint, torch.device("cpu"), RuntimeSettings(**runtime))


@pytest.fixture(scope="module")
def service(checkpoint) -> Iterator[TestClient]:
    with TestClient(app_of(model_of(checkpoint))) as client:
        yield client


def predicted(client: TestClient, png: bytes, query: str, route: str = "/predict") -> Any:
    response = client.post(f"{route}?{query}", content=png, headers=HEADERS)
    assert response.status_code == 200, response.text
    return response.json()


def missing_sets(body: Any) -> list[str]:
    """Returns the messages of the warnings about prediction sets."""
    return [
        warning["message"] for warning in body["warnings"] if warning["code"] == "no_prediction_set"
    ]


@pytest.mark.parametrize("query", ["coverage=0.9", "coverage=0.90&mode=stoch&samples=2"])
def test_the_set_holds_the_classes_within_their_thresholds(service, png, query) -> None:
    body = predicted(service, png, query)
    expected = [
        name
        for (name, probability), threshold in zip(
            body["probabilities"].items(), THRESHOLDS, strict=True
        )
        if 1 - probability <= threshold
    ]
    assert body["prediction_set"] == {
        "labels": expected,
        "coverage": 0.9,
        "unit": "lesion",
        "calibrated_on": "HAM10000, calibration part",
    }
    assert "nv" in expected
    assert missing_sets(body) == []


def test_without_coverage_there_is_no_set(service, png) -> None:
    assert "prediction_set" not in predicted(service, png, "mode=det")


@pytest.mark.parametrize(
    "query",
    [
        "coverage=0.8",
        "coverage=0.9&mode=stoch&samples=4",
    ],
)
def test_options_without_calibration_give_null_and_a_warning(service, png, query) -> None:
    body = predicted(service, png, query)
    assert body["prediction_set"] is None
    (message,) = missing_sets(body)
    assert "0.9 for det, float32; 0.9 for stoch, 2 samples, independent" in message


def test_the_details_of_the_model_list_the_calibrated_options(service) -> None:
    det, stoch = service.get("/models/tiny").json()["prediction_sets"]
    assert det == {
        "coverage": 0.9, "mode": "det", "samples": 1, "sampler": "independent",
        "precision": "float32", "unit": "lesion",
        "units": {"bkl": 60, "mel": 70, "nv": 3, "bcc": 20, "akiec": 30},
        "always_included": ["nv"], "data": "HAM10000, calibration part",
    }  # fmt: skip
    assert stoch == det | {"mode": "stoch", "samples": 2}


def test_a_set_of_another_precision_comes_with_a_warning(checkpoint, png) -> None:
    with TestClient(app_of(model_of(checkpoint, precision="bfloat16"))) as client:
        body = predicted(client, png, "coverage=0.9")
    assert body["prediction_set"] is not None
    (warning,) = (entry for entry in body["warnings"] if entry["code"] == "other_precision")
    assert "calibrated in float32 and the prediction is in bfloat16" in warning["message"]

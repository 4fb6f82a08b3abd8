"""`coverage=` on /predict, and the calibrated options of a model."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import Checkpoint
from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.sampling import Options
from tests.conftest import DET, STOCH
from tests.service.conftest import app_of

NAMES = ("bkl", "mel", "nv", "bcc", "akiec")
HEADERS = {"Content-Type": "image/png"}
THRESHOLDS = (0.9, 0.4, 1.0, 0.75, 0.0)


def calibration(options: Options) -> dict[str, Any]:
    return {
        "coverage": 0.9, "options": options, "thresholds": THRESHOLDS, "unit": "lesion",
        "units": (60, 70, 3, 20, 30), "confidences": (0.95, 0.95, 1.0, 0.88, 0.96),
        "data": "HAM10000, calibration part",
        "data_sha256": "0" * 64,
    }  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(make_network, make_config) -> Checkpoint:
    network = make_network(classes=len(NAMES))
    config = make_config(
        network,
        classes=tuple(ClassName(name=name, description=name.upper()) for name in NAMES),
        prediction_sets=(calibration(DET), calibration(replace(STOCH, samples=2))),
    )
    return Checkpoint(network, config, "sha256:five")


@pytest.fixture(scope="module")
def service(checkpoint) -> Iterator[TestClient]:
    with TestClient(app_of(EulerLoRA(checkpoint, torch.device("cpu")))) as client:
        yield client


def predicted(client: TestClient, png: bytes, query: str) -> Any:
    response = client.post(f"/predict?{query}", content=png, headers=HEADERS)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("query", ["coverage=0.9", "coverage=0.90&mode=stoch&samples=2"])
def test_a_calibrated_coverage_adds_a_set(service, png, query) -> None:
    body = predicted(service, png, query)
    labels = body["prediction_set"].pop("labels")
    assert "nv" in labels  # always included
    assert body["prediction_set"] == {
        "coverage": 0.9, "unit": "lesion", "calibrated_on": "HAM10000, calibration part",
    }  # fmt: skip


@pytest.mark.parametrize("query", ["coverage=0.8", "coverage=0.9&mode=stoch&samples=4"])
def test_options_without_calibration_give_null_and_a_warning(service, png, query) -> None:
    body = predicted(service, png, query)
    assert body["prediction_set"] is None
    assert "no_prediction_set" in [warning["code"] for warning in body["warnings"]]
    assert "prediction_set" not in predicted(service, png, query.partition("&")[2])


def test_the_details_of_the_model_list_the_calibrated_options(service) -> None:
    det, stoch = service.get("/models/tiny").json()["prediction_sets"]
    assert det == {
        "coverage": 0.9, "options": asdict(DET), "unit": "lesion",
        "units": {"bkl": 60, "mel": 70, "nv": 3, "bcc": 20, "akiec": 30},
        "confidences": {"bkl": 0.95, "mel": 0.95, "nv": 1.0, "bcc": 0.88, "akiec": 0.96},
        "always_included": ["nv"], "data": "HAM10000, calibration part",
    }  # fmt: skip
    assert stoch == det | {"options": asdict(replace(STOCH, samples=2))}

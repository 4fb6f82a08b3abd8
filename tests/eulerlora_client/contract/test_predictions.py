"""Predictions and problem documents against the HTTP contract."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from eulerlora_client.contract.answers import (
    Prediction,
    PredictionBatch,
    ProblemDocument,
    TriageBatch,
    TriageResult,
    item_id,
)
from service.telemetry.request_id import WELL_FORMED

CONTRACT: dict[str, Any] = json.loads("""
{
  "request_id": "an-id", "model": "ham10000", "revision": "sha256:0",
  "mode": "stoch", "samples": 4, "trajectories": 8, "seed": 1234567,
  "label": "nv",
  "probabilities": {"nv": 0.5, "mel": 0.3, "bkl": 0.2},
  "entropy": 0.41, "expected_entropy": 0.38, "mutual_information": 0.03,
  "msp": 0.88, "ood": false, "ood_threshold": 0.52,
  "warnings": []
}
""")
PROBLEM = {
    "type": "urn:x", "title": "t", "status": 422, "detail": "d", "code": "unusable_image",
    "request_id": "an-id",
}  # fmt: skip
TRIAGE: dict[str, Any] = {
    "disposition": "urgent", "title": "t", "pathway": "p", "warning": "w",
    "reasons": [{"code": "malignant_group", "words": "w"}],
    "policy": {"version": 1, "hash": "sha256:0", "notice": None},
    "malignant": {"classes": ["mel"], "probability": 0.3, "urgent": 0.2},
    "quality": {
        "width": 64, "height": 48, "brightness": 0.5, "dark_share": 0.0, "bright_share": 0.0,
        "sharpness": 90.5,
    },
    "prediction": CONTRACT,
}  # fmt: skip


def test_the_example_of_the_contract_is_a_prediction_with_the_same_keys() -> None:
    prediction = Prediction.model_validate_json(json.dumps(CONTRACT))
    assert json.loads(prediction.model_dump_json(exclude_unset=True)) == CONTRACT
    optional = {
        "ood_scores", "unfamiliar", "prediction_set", "standard_error", "trajectory_probabilities",
        "index", "item_id", "sampled", "rows",
    }  # fmt: skip
    assert set(Prediction.model_fields) - set(CONTRACT) == optional


@pytest.mark.parametrize(
    ("key", "value"),
    [("msp", 1.01), ("entropy", -0.01), ("mutual_information", -1e-9), ("msp", float("nan")),
     ("probabilities", {"nv": 1.5}), ("trajectory_probabilities", [[-0.1]]), ("mode", "both")],
)  # fmt: skip
def test_a_value_outside_its_range_is_an_error(key: str, value: object) -> None:
    with pytest.raises(ValidationError):
        Prediction.model_validate(CONTRACT | {key: value})


@pytest.mark.parametrize("key", CONTRACT)
def test_every_key_of_the_contract_is_required(key: str) -> None:
    with pytest.raises(ValidationError):
        Prediction.model_validate({k: v for k, v in CONTRACT.items() if k != key})


def test_keys_of_later_servers_are_ignored_and_nothing_can_be_changed() -> None:
    prediction = Prediction.model_validate(CONTRACT | {"hue": "green"})
    assert not hasattr(prediction, "hue")
    with pytest.raises(ValidationError):
        prediction.label = "mel"  # type: ignore[misc]


def test_classes_are_in_the_order_of_the_response() -> None:
    assert Prediction.model_validate(CONTRACT).classes == ("nv", "mel", "bkl")


def test_a_trajectory_has_the_label_of_its_highest_probability() -> None:
    rows = [[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.4, 0.4, 0.2]]
    detailed = Prediction.model_validate(CONTRACT | {"trajectory_probabilities": rows})
    assert detailed.trajectory_labels == ("nv", "bkl", "nv")
    assert Prediction.model_validate(CONTRACT).trajectory_labels == ()


def test_a_problem_document_has_the_members_of_rfc_9457_a_code_and_a_request_id() -> None:
    assert set(ProblemDocument.model_fields) == {
        "type", "title", "status", "detail", "code", "request_id", "index", "item_id",
    }  # fmt: skip


def test_the_results_of_a_batch_are_predictions_or_problems_with_their_items() -> None:
    item = {"index": 1, "item_id": "an-id:1"}
    batch = PredictionBatch.model_validate({"results": [CONTRACT, PROBLEM | item]})
    good, bad = batch.results
    assert isinstance(good, Prediction) and isinstance(bad, ProblemDocument)
    assert (good.index, bad.index, bad.item_id) == (None, 1, "an-id:1")


def test_the_results_of_a_triage_batch_are_dispositions_or_problems() -> None:
    batch = TriageBatch.model_validate({"results": [PROBLEM, TRIAGE | {"index": 1}]})
    bad, good = batch.results
    assert isinstance(bad, ProblemDocument) and isinstance(good, TriageResult)
    assert (good.disposition, good.index, good.prediction.label) == ("urgent", 1, "nv")


@pytest.mark.parametrize("request_id", ["an-id", "a.1", "1"])
def test_the_id_of_an_item_names_its_request_and_is_the_id_of_no_request(request_id: str) -> None:
    assert item_id(request_id, 3).rsplit(":", 1) == [request_id, "3"]
    assert not WELL_FORMED.fullmatch(item_id(request_id, 3))

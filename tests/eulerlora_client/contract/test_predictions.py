"""Predictions and problem documents against the HTTP contract."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from eulerlora_client.contract.predictions import Prediction, ProblemDocument

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


def test_the_example_of_the_contract_is_a_prediction_with_the_same_keys() -> None:
    prediction = Prediction.model_validate_json(json.dumps(CONTRACT))
    assert json.loads(prediction.model_dump_json(exclude_unset=True)) == CONTRACT
    optional = {
        "ood_scores", "unfamiliar", "prediction_set", "standard_error", "trajectory_probabilities",
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
        "type", "title", "status", "detail", "code", "request_id",
    }  # fmt: skip

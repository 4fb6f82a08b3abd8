"""What the service answers, whatever its version."""

import pytest
from pydantic import ValidationError

from eulerlora_client.contract.answers import Answer, ModelDetails, ModelSummary, Prediction
from service import schemas


def prediction(**changes: object) -> Prediction:
    fields = {
        "request_id": "r1",
        "model": "tiny",
        "revision": "sha256:0",
        "mode": "stoch",
        "trajectories": 3,
        "seed": 7,
        "label": "nv",
        "probabilities": {"nv": 0.5, "mel": 0.3, "bkl": 0.2},
        "entropy": 1.0,
        "expected_entropy": 0.9,
        "mutual_information": 0.1,
        "msp": 0.5,
    }
    return Prediction.model_validate(fields | changes)


def test_classes_keep_the_order_of_the_answer() -> None:
    assert prediction().classes == ("nv", "mel", "bkl")


def test_each_trajectory_has_the_label_of_its_largest_probability() -> None:
    rows = [[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.4, 0.4, 0.2]]
    assert prediction(trajectory_probabilities=rows).trajectory_labels == ("nv", "bkl", "nv")
    assert prediction().trajectory_labels == ()


def test_fields_of_later_servers_are_ignored_and_nothing_can_be_changed() -> None:
    found = prediction(hue="green")
    assert not hasattr(found, "hue")
    with pytest.raises(ValidationError):
        found.label = "mel"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("ours", "served"),
    [
        (Prediction, schemas.PredictionBody),
        (ModelSummary, schemas.ModelSummary),
        (ModelDetails, schemas.ModelDetails),
    ],
)
def test_every_field_that_is_served_can_be_read(
    ours: type[Answer], served: type[schemas.BaseModel]
) -> None:
    assert list(ours.model_fields) == list(served.model_fields)

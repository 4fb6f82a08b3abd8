"""Query parameters and response bodies against the HTTP contract."""

import json

import pytest
from pydantic import ValidationError

from service.schemas import PredictionBody, PredictQuery, ProblemBody
from service.settings import MAX_SAMPLES

CONTRACT = json.loads("""
{
  "request_id": "an-id", "model": "ham10000", "revision": "sha256:0",
  "mode": "stoch", "samples": 4, "trajectories": 8, "seed": 1234567,
  "label": "nv",
  "probabilities": {"akiec": 0.01, "nv": 0.99},
  "entropy": 0.41, "expected_entropy": 0.38, "mutual_information": 0.03,
  "msp": 0.88, "ood": false, "ood_threshold": 0.52,
  "warnings": []
}
""")


def test_a_query_without_parameters_asks_for_det_and_leaves_the_rest_open() -> None:
    query = PredictQuery()
    assert query.mode == "det"
    assert (query.samples, query.seed, query.model, query.detail) == (None,) * 4


@pytest.mark.parametrize(
    ("name", "accepted", "rejected"),
    [
        ("mode", ["det", "stoch"], ["Det", "mean", "", "0"]),
        (
            "samples",
            ["1", "64"],
            ["0", "-1", "65", "1e9", "NaN", "4.5", "", "inf", "0x4", "\u0664"],
        ),
        ("seed", ["0", "4294967295"], ["-1", "4294967296", "abc", "1.5", "", "9" * 5000]),
        ("detail", ["trajectories"], ["all", ""]),
        ("model", ["ham10000"], []),
        ("sample", [], ["4"]),
        ("MODE", [], ["det"]),
    ],
)
def test_a_parameter_takes_its_range_and_nothing_else(name, accepted, rejected) -> None:
    for value in accepted:
        assert str(getattr(PredictQuery.model_validate({name: value}), name)) == value
    for value in rejected:
        with pytest.raises(ValidationError):
            PredictQuery.model_validate({name: value})


@pytest.mark.parametrize("value", ["4.0", "1_0", " 4", "+4"])
def test_a_number_is_plain_decimal_digits(value) -> None:
    with pytest.raises(ValidationError):
        PredictQuery.model_validate({"mode": "stoch", "samples": value})


def test_samples_go_up_to_the_limit_that_models_tell() -> None:
    assert MAX_SAMPLES == 64


def test_the_contracts_example_is_a_prediction_and_comes_back_key_for_key() -> None:
    body = PredictionBody.model_validate(CONTRACT)
    assert body.model_dump(exclude_unset=True) == CONTRACT
    optional = {"trajectory_probabilities", "standard_error"}
    assert set(PredictionBody.model_fields) - set(CONTRACT) == optional


@pytest.mark.parametrize(
    ("key", "value"),
    [("msp", 1.01), ("entropy", -0.01), ("mutual_information", -1e-9), ("msp", float("nan")),
     ("probabilities", {"nv": 1.5}), ("trajectory_probabilities", [[-0.1]]), ("mode", "both")],
)  # fmt: skip
def test_a_prediction_outside_its_bounds_is_never_sent(key, value) -> None:
    with pytest.raises(ValidationError):
        PredictionBody.model_validate(CONTRACT | {key: value})


@pytest.mark.parametrize("key", CONTRACT)
def test_every_key_of_the_contract_is_required(key) -> None:
    with pytest.raises(ValidationError):
        PredictionBody.model_validate({k: v for k, v in CONTRACT.items() if k != key})


def test_a_problem_has_the_members_of_rfc_9457_and_our_own_two() -> None:
    assert set(ProblemBody.model_fields) == {"type", "title", "status", "detail"} | {
        "code",
        "request_id",
    }

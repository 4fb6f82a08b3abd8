"""Predictions, queries and problems against the HTTP contract."""

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from eulerlora_contract import problems
from eulerlora_contract.answers import Prediction, PredictionBatch
from eulerlora_contract.checkpoints import Threshold, missing_threshold
from eulerlora_contract.queries import PredictQuery
from eulerlora_contract.sampling import Options
from tests.conftest import DET, STOCH

FITTED = [
    Threshold(options=DET, msp=0.5, kept=0.95, images=10, data="d"),
    Threshold(options=STOCH, msp=0.5, kept=0.95, images=10, data="d"),
    Threshold(options=replace(STOCH, samples=8), msp=0.5, kept=0.95, images=10, data="d"),
]


@pytest.mark.parametrize(
    ("thresholds", "options", "named"),
    [
        (FITTED, DET, None),
        (FITTED, replace(STOCH, samples=8, precision="bfloat16"), None),
        (FITTED, replace(STOCH, samples=3), f"{DET}; {STOCH}; {replace(STOCH, samples=8)}"),
        (FITTED, replace(STOCH, sampler="balanced"), f"{replace(STOCH, samples=8)}"),
        (FITTED, replace(DET, views=8), f"{replace(STOCH, samples=8)}"),
        (FITTED[:1], replace(STOCH, samples="auto"), f"{DET}"),
        ([], DET, "calibrate CHECKPOINT --data DIR --out NEW` makes one with thresholds"),
    ],
)
def test_options_without_a_threshold_name_those_that_have_one(
    thresholds: list[Threshold], options: Options, named: str | None
) -> None:
    reason = missing_threshold(thresholds, options)
    assert reason is None if named is None else (reason or "").endswith(named)
    assert reason is None or f" for {options}, only for " in reason or not thresholds


CONTRACT: dict[str, Any] = {
    "request_id": "an-id", "model": "ham10000", "revision": "sha256:0",
    "mode": "stoch", "samples": 4, "trajectories": 8, "seed": 1234567,
    "label": "nv",
    "probabilities": {"nv": 0.5, "mel": 0.3, "bkl": 0.2},
    "entropy": 0.41, "expected_entropy": 0.38, "mutual_information": 0.03,
    "msp": 0.88, "ood": False, "ood_threshold": 0.52,
    "warnings": [],
}  # fmt: skip
PROBLEM = {
    "type": "urn:x", "title": "t", "status": 422, "detail": "d", "code": "unusable_image",
    "request_id": "an-id",
}  # fmt: skip


def test_the_example_of_the_contract_is_a_prediction_with_the_same_keys() -> None:
    prediction = Prediction.model_validate_json(json.dumps(CONTRACT))
    assert json.loads(prediction.model_dump_json(exclude_unset=True)) == CONTRACT
    optional = {
        "ood_scores", "unfamiliar", "prediction_set", "trajectory_probabilities",
        "type", "index", "item_id", "precision", "rows", "runtime", "sampler", "views",
        "trajectory_views", "variance",
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


def test_a_trajectory_has_the_label_of_its_highest_probability() -> None:
    rows = [[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.4, 0.4, 0.2]]
    detailed = Prediction.model_validate(CONTRACT | {"trajectory_probabilities": rows})
    assert detailed.trajectory_labels == ("nv", "bkl", "nv")
    assert Prediction.model_validate(CONTRACT).trajectory_labels == ()


def test_the_results_of_a_batch_are_predictions_or_problems_with_their_items() -> None:
    item = {"index": 1, "item_id": "an-id:1"}
    batch = PredictionBatch.model_validate({"results": [CONTRACT, PROBLEM | item]})
    results: Any = batch.results
    good, bad = results
    assert (good.label, good.index) == ("nv", None)
    assert (bad.code, bad.index, bad.item_id) == ("unusable_image", 1, "an-id:1")


def test_a_query_without_parameters_is_det_and_leaves_the_rest_to_the_service() -> None:
    query = PredictQuery()
    assert query.mode == "det"
    assert set(query.model_dump(exclude={"mode"}).values()) == {None}


@pytest.mark.parametrize(
    ("name", "accepted", "rejected"),
    [
        ("mode", ["det", "stoch"], ["Det", "mean", "", "0"]),
        (
            "samples",
            ["1", "64", "auto"],
            ["0", "-1", "65", "1e9", "NaN", "4.5", "", "inf", "0x4", "\u0664", "4.0", "1_0", " 4",
             "+4", "AUTO"],
        ),
        ("views", ["1", "2", "4", "8"], ["0", "3", "16", "-1", "", "8.0", "auto", "9" * 5000]),
        ("seed", ["0", "4294967295"], ["-1", "4294967296", "abc", "1.5", "", "9" * 5000]),
        ("detail", ["trajectories"], ["all", ""]),
        (
            "coverage",
            ["0.9", "0.95", "0.001"],
            ["0", "1", "0.0", "1.0", "-0.5", "1.5", "90", "nan", "inf", "9e-1", "", " 0.9", "+0.9",
             "0,9", "0_0.9", "1.", "90%",
             "1" * 1_000_000 + "x"],  # a search that goes back would take an hour
        ),
        ("model", ["ham10000"], []),
        ("sample", [], ["4"]),
        ("MODE", [], ["det"]),
    ],
)  # fmt: skip
def test_a_parameter_accepts_its_range_and_nothing_else(
    name: str, accepted: list[str], rejected: list[str]
) -> None:
    for value in accepted:
        assert str(getattr(PredictQuery.model_validate({name: value}), name)) == value
    for value in rejected:
        with pytest.raises(ValidationError):
            PredictQuery.model_validate({name: value})


def tree(kind: type) -> Iterator[type]:
    """Another package may have private subclasses."""
    if kind.__module__ == problems.__name__:
        yield kind
    for subclass in kind.__subclasses__():
        yield from tree(subclass)


TREE = list(tree(problems.Problem))


SENT = [*tree(problems.RequestRefused), *tree(problems.ServiceFailed)]


@pytest.mark.parametrize("kind", SENT, ids=lambda kind: kind.code)
def test_a_code_selects_its_class_whatever_the_status(kind: type[problems.Problem]) -> None:
    assert problems.problem_class(kind.code, 418) is kind


def test_codes_and_titles_are_unique() -> None:
    codes = [kind.code for kind in TREE]
    assert len(set(codes)) == len(codes)
    titles = [kind.title for kind in problems.SENT_BY_SERVICE]
    assert len(set(titles)) == len(titles)


def test_a_problem_is_one_line_and_can_be_pickled() -> None:
    problem = problems.QuotaExceeded("at most 2 a minute", request_id="r1", retry_after_s=3)
    assert str(problem) == "The quota is used up: at most 2 a minute"
    again = pickle.loads(pickle.dumps(problem))
    assert (str(again), again.__dict__) == (str(problem), problem.__dict__)

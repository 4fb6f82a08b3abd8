"""Query parameters against the HTTP contract."""

import pytest
from pydantic import ValidationError

from eulerlora_client.contract.queries import PredictQuery


def test_a_query_without_parameters_is_det_and_leaves_the_rest_to_the_service() -> None:
    query = PredictQuery()
    assert query.mode == "det"
    assert (query.samples, query.seed, query.model, query.detail, query.coverage) == (None,) * 5


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
        ("seed", ["0", "4294967295"], ["-1", "4294967296", "abc", "1.5", "", "9" * 5000]),
        ("detail", ["trajectories"], ["all", ""]),
        (
            "coverage",
            ["0.9", "0.95", "0.001"],
            ["0", "1", "0.0", "1.0", "-0.5", "1.5", "90", "nan", "inf", "9e-1", "", " 0.9", "+0.9",
             "0,9", "0_0.9", "1.", "90%"],
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

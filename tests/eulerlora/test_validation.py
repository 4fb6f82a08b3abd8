"""eulerlora.validation: one-line errors in the project's words."""

from collections.abc import Mapping

import pytest
from pydantic import ValidationError

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.errors import SettingsError
from eulerlora.settings import AdapterSettings, Auto, Draw, PositiveInt
from eulerlora.validation import Settings, first_fault, validated


class Nested(Settings):
    adapters: AdapterSettings
    draw: Draw = Draw()
    descriptions: dict[str, str] = {}
    limit: PositiveInt | float | Auto = "auto"


def test_valid_values_give_settings() -> None:
    assert validated(AdapterSettings, {"rank": 4, "min_rank": 2}).rank == 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"adapters": {"rank": 0}}, "adapters.rank: expected a number of at least 1, got 0"),
        ({"adapters": {"rank": "x"}}, "adapters.rank: expected an integer, got 'x'"),
        ({"adapters": {"rang": 4}}, "unknown key adapters.rang; did you mean adapters.rank?"),
        ({"adapters": {"zzz": 4}}, "unknown key adapters.zzz"),
        ({"adapters": {}, "ada-pters": 4}, "unknown key ada-pters; did you mean adapters?"),
        ({"adapters": {"min rank": 4}}, "unknown key adapters.min rank; did you mean"),
        ({}, "missing key adapters"),
        ({"adapters": {}, "descriptions": {"a-b": 4}}, "descriptions.a-b: expected text, got 4"),
        (
            {"adapters": {}, "limit": "x"},
            "limit: expected an integer or a number or 'auto', got 'x'",
        ),
        ({"adapters": {"rank": 4, "min_rank": 5}}, "expected min_rank of at most rank=4, got 5"),
        ({"adapters": {}, "draw": {"mode": "mean"}}, "draw.mode: expected 'det' or 'stoch'"),
    ],
)
def test_the_first_fault_is_one_line_that_names_the_key(
    values: Mapping[str, object], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        validated(Nested, values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_long_value_is_abbreviated() -> None:
    with pytest.raises(SettingsError) as caught:
        validated(AdapterSettings, {"rank": "x" * 1000})
    assert len(str(caught.value)) < 100


def test_invalid_json_is_reported_without_its_content() -> None:
    with pytest.raises(ValidationError) as caught:
        CheckpointConfig.model_validate_json('{"secret')
    assert first_fault(caught.value) == "expected valid JSON"

"""Validation errors in plain text."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from eulerlora_client.errors import SettingsError
from eulerlora_client.settings import Settings, validated


class Limits(Settings):
    """A nested table."""

    share: Annotated[float, Field(ge=0, le=1)] = 0.5
    names: Annotated[tuple[str, ...], Field(min_length=1)] = ("a",)


class Example(Settings):
    """A file with a table."""

    format_version: Literal[1]
    limits: Limits = Limits()
    evidence: Limits | None = None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "missing key format_version"),
        ({"format_version": 2}, "format_version: expected 1, got 2"),
        ({"format_version": 1, "limit": {}}, "unknown key limit; did you mean limits?"),
        ({"format_version": 1, "zzz": 0}, "unknown key zzz"),
        (
            {"format_version": 1, "limits": {"shares": 1}},
            "unknown key limits.shares; did you mean limits.share?",
        ),
        (
            {"format_version": 1, "evidence": {"shares": 1}},
            "unknown key evidence.shares; did you mean evidence.share?",
        ),
        (
            {"format_version": 1, "limits": {"share": 2}},
            "limits.share: expected at most 1.0, got 2",
        ),
        (
            {"format_version": 1, "limits": {"share": "much"}},
            "limits.share: expected a number, got 'much'",
        ),
        (
            {"format_version": 1, "limits": {"share": float("nan")}},
            "limits.share: expected a finite number, got nan",
        ),
        ({"format_version": 1, "limits": {"names": []}}, "limits.names: expected at least 1 items"),
        ({"format_version": 1, "limits": 3}, "limits: expected a table, got 3"),
    ],
)
def test_an_error_says_what_was_expected_and_given(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        validated(Example, values)
    assert str(raised.value) == message

"""Validation errors are one line in the project's words, and name the key."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from eulerlora_contract.errors import SettingsError
from eulerlora_contract.settings import (
    Settings,
    optional,
    toml_tables,
    validated,
)


class Limits(Settings):
    share: Annotated[float, Field(ge=0, le=1)] = 0.5
    names: Annotated[tuple[str, ...], Field(min_length=1)] = ("a",)


class Example(Settings):
    format_version: Literal[1]
    limits: Limits = Limits()
    evidence: Limits | None = None
    descriptions: dict[str, str] = {}
    limit: Annotated[int, Field(gt=0)] | float | Literal["auto"] = "auto"
    added: int = optional(0, ge=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format_version": 2}, "format_version: expected 1, got 2"),
        ({"limits": {"share": 2}}, "limits.share: expected a number of at most 1.0, got 2"),
        ({"limits": {"share": "much"}}, "limits.share: expected a number, got 'much'"),
        ({"limits": {"share": float("nan")}}, "limits.share: expected a finite number, got nan"),
        ({"limits": {"names": []}}, "limits.names: expected 1 or more items, got []"),
        ({"limits": 3}, "limits: expected a table, got 3"),
        ({"descriptions": {"a-b": 4}}, "descriptions.a-b: expected text, got 4"),
        ({"limit": "x"}, "limit: expected an integer or a number or 'auto', got 'x'"),
        ({"limt": {}}, "unknown key limt; did you mean limit?"),
        ({"zzz": 0}, "unknown key zzz"),
        ({"min zzz": 0}, "unknown key min zzz"),
        ({"shares": 1}, "unknown key shares; did you mean evidence.share?"),
        ({"limits": {"shares": 1}}, "unknown key limits.shares; did you mean limits.share?"),
        ({"evidence": {"shares": 1}}, "unknown key evidence.shares; did you mean evidence.share?"),
    ],
)
def test_an_error_names_the_key_and_what_was_expected_and_given(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        validated(Example, {"format_version": 1} | values)
    assert str(raised.value) == message


class _Study(Settings):
    parts: tuple[Limits, ...] = ()
    limits: Limits = Limits()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"parts": {f"name {n}": {"share": 0.5} for n in range(9)}},
            "parts: expected a list ([[parts]] in TOML), got a table",
        ),
        ({"parts": {"share": 1}}, "parts: expected a list ([[parts]] in TOML), got {'share': 1}"),
        ({"limits": [{"share": 0.123456789}] * 9}, "limits: expected a table, got a list of 9"),
        ({"limits": [1]}, "limits: expected a table, got [1]"),
    ],
)
def test_a_table_in_place_of_a_list_or_a_list_in_place_of_a_table_is_a_short_error(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        validated(_Study, values)
    assert str(raised.value) == message


def test_a_missing_key_is_named() -> None:
    with pytest.raises(SettingsError, match="format_version"):
        validated(Example, {})


def test_a_long_value_is_abbreviated() -> None:
    with pytest.raises(SettingsError) as raised:
        validated(Example, {"format_version": "x" * 1000})
    assert len(str(raised.value)) < 100


def test_an_option_is_written_only_if_it_is_not_its_default() -> None:
    assert "added" not in Example(format_version=1).model_dump()
    assert Example(format_version=1, added=2).model_dump()["added"] == 2


@pytest.mark.parametrize(
    "text", ["a =", "a = " + "9" * 5000, "a = " + "[" * 2000, ".".join("a" * 200) + " = 1"]
)
def test_a_toml_text_that_python_cannot_follow_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        toml_tables(text)


def test_a_toml_text_is_read_as_by_python() -> None:
    assert toml_tables("a.b = [[1]]\n[[c]]\nd = {}") == {"a": {"b": [[1]]}, "c": [{"d": {}}]}

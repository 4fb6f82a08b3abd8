"""Base class of settings, and validation errors as one line of plain text."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from eulerlora_client.errors import SettingsError

EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a table",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "json_invalid": "valid JSON",
    "less_than": "a number below {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "model_attributes_type": "a table",
    "model_type": "a table",
    "string_too_short": "a text of at least {min_length} characters",
    "string_type": "a text",
    "too_short": "at least {min_length} items",
    "tuple_type": "a list",
}
"""Expected values, by pydantic's type of error."""


class Settings(BaseModel):
    """Base of all settings: immutable, finite, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


AnySettings = TypeVar("AnySettings", bound=Settings)


def validated(kind: type[AnySettings], values: Mapping[str, Any]) -> AnySettings:
    """Returns settings with the given values. Raises SettingsError."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise SettingsError(first_error(error, kind)) from error


def first_error(error: ValidationError, model: type[BaseModel]) -> str:
    """Returns the first error of a validation as one line that begins with the key."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"missing key {key}"
    if first["type"] == "extra_forbidden":
        return f"unknown key {key}{_suggestion(first['loc'], model)}"
    context = first.get("ctx", {})
    if first["type"] == "value_error":
        reason = str(context["error"])
    else:
        expected = EXPECTED.get(first["type"], "another value")
        reason = f"expected {expected.format_map(context)}{_given(first['input'])}"
    return f"{key}: {reason}" if key else reason


def _given(value: object) -> str:
    """Returns ", got VALUE" for a short scalar."""
    shown = repr(value)
    return f", got {shown}" if isinstance(value, str | int | float) and len(shown) < 40 else ""


def _suggestion(location: Sequence[int | str], model: type[BaseModel]) -> str:
    """Returns "; did you mean KEY?" for an unknown key that resembles a known one."""
    *parents, unknown = map(str, location)
    for parent in parents:
        nested = _model_in(model.model_fields[parent].annotation)
        if nested is None:
            return ""
        model = nested
    similar = get_close_matches(unknown, model.model_fields, n=1)
    return f"; did you mean {'.'.join([*parents, *similar])}?" if similar else ""


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Returns the model in an annotation such as Model or Model | None; None for others."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None

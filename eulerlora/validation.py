"""Base class of settings, and one-line errors for values that do not validate."""

import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from eulerlora.errors import SettingsError


class Settings(BaseModel):
    """Base of all settings: immutable, finite, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


AnySettings = TypeVar("AnySettings", bound=Settings)


def validated(kind: type[AnySettings], values: Mapping[str, Any]) -> AnySettings:
    """Returns settings of a kind from a user's values. Raises SettingsError, one line."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise SettingsError(first_fault(error, kind)) from error


EXPECTED = {
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "finite_number": "a finite number",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "text that matches {pattern}",
    "too_short": "at least {min_length} item(s)",
    "union_tag_invalid": "a name of {expected_tags}",
    "union_tag_not_found": "a table with a name",
}
EXPECTED_BY_PREFIX = {
    "int": "an integer",
    "float": "a number",
    "string": "text",
    "bool": "true or false",
    "tuple": "a list",
    "list": "a list",
    "dict": "a table",
    "model": "a table",
}
"""What a key expects, by the type of pydantic's error or by the first word of that type."""


def first_fault(error: ValidationError, kind: type[BaseModel] | None = None) -> str:
    """Returns the first validation error in one line that begins with the key.

    kind: the model that was validated; an unknown key then gets a suggestion.
    """
    faults = error.errors()
    key = _key(faults[0])
    if faults[0]["type"] == "extra_forbidden":
        return f"unknown key {key}{_suggestion(key, kind)}"
    if faults[0]["type"] == "json_invalid":
        return "expected valid JSON"
    if faults[0]["type"] == "missing":
        return f"missing key {key}"
    if faults[0]["type"] == "value_error":
        reason = str(faults[0]["ctx"]["error"])
        return f"{key}: {reason}" if key else reason
    alternatives = dict.fromkeys(_expected(fault) for fault in faults if _key(fault) == key)
    reason = f"expected {' or '.join(alternatives)}, got {reprlib.repr(faults[0]['input'])}"
    return f"{key}: {reason}" if key else reason


UNION_MEMBER = re.compile(r"(constrained-)?(int|str|float|bool)|.+\[.*\]")
"""Pydantic's names for the members of a union, such as "constrained-int" or "literal['auto']"."""


def _key(fault: ErrorDetails) -> str:
    """Returns a dotted key without pydantic's names for the members of a union."""
    parts = [str(part) for part in fault["loc"]]
    if fault["type"] in ("extra_forbidden", "missing"):  # the last part is a key, however named
        return ".".join([*_without_union_members(parts[:-1]), parts[-1]])
    return ".".join(_without_union_members(parts))


def _without_union_members(parts: Sequence[str]) -> list[str]:
    return [part for part in parts if not UNION_MEMBER.fullmatch(part)]


def _expected(fault: ErrorDetails) -> str:
    name = fault["type"]
    general = EXPECTED_BY_PREFIX.get(name.partition("_")[0], "another value")
    return EXPECTED.get(name, general).format(**fault.get("ctx", {}))


def _suggestion(key: str, kind: type[BaseModel] | None) -> str:
    """Returns "; did you mean KEY?" if the model has a similar key, or an empty string."""
    *parents, last = key.split(".")
    model = kind
    for parent in parents:
        if model is not None and not parent.isdigit():
            field = model.model_fields.get(parent)
            model = None if field is None else _model_in(field.annotation)
    similar = get_close_matches(last, model.model_fields if model is not None else (), n=1)
    if similar:
        return f"; did you mean {'.'.join([*parents, *similar])}?"
    elsewhere = {} if kind is None else {name.rpartition(".")[2]: name for name in _names(kind)}
    names = [elsewhere[match] for match in get_close_matches(last, elsewhere, n=1)]
    return "".join(f"; did you mean {name}?" for name in names)


def _names(model: type[BaseModel]) -> Iterator[str]:
    """Yields the dotted names of all keys of a model and of the models in it."""
    for name, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        yield name
        if inner is not None:
            yield from (f"{name}.{key}" for key in _names(inner))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Returns the model in an annotation such as Model, Model | None or tuple[Model, ...]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in models if model is not None), None)

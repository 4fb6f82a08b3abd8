"""Base class of settings, and validation errors as one line of plain text."""

import re
import reprlib
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from eulerlora_contract.errors import SettingsError

Count = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
NonEmpty = Annotated[str, Field(min_length=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Settings(BaseModel):
    """Base of all settings: immutable, finite, and an unknown key is an error."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


_AnySettings = TypeVar("_AnySettings", bound=Settings)


def optional(default: Any, **constraints: Any) -> Any:
    """A field that is not serialised while it has its default.

    A config, and so its revision, does not change when an option is added.
    """
    return Field(default, exclude_if=lambda value: bool(value == default), **constraints)


def validated(kind: type[_AnySettings], values: Mapping[str, Any]) -> _AnySettings:
    """Validates a user's values.

    Raises:
        SettingsError: With the first fault, in one line.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise SettingsError(first_error(error, kind)) from error


_MAX_TOML_DEPTH = 16  # of tables and lists; far below what a recursive function can follow
_TOO_DEEP = f"expected tables and lists at most {_MAX_TOML_DEPTH} levels deep"


def toml_tables(text: str) -> dict[str, Any]:
    """Parses TOML.

    Raises:
        SettingsError: For other text, and for tables or lists that are nested too deeply.
    """
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise SettingsError(_TOO_DEEP) from None
    except ValueError as error:  # also of an integer with more digits than Python reads
        raise SettingsError(f"expected TOML ({error})") from error
    level: list[Any] = [tables]
    for _ in range(_MAX_TOML_DEPTH):
        values = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for inner in values for value in inner if isinstance(value, dict | list)]
    if level:
        raise SettingsError(_TOO_DEEP)
    return tables


_EXPECTED = {
    "finite_number": "a finite number",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "json_invalid": "valid JSON",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_long": "text of {max_length} or fewer characters",
    "string_too_short": "text of {min_length} or more characters",
    "too_long": "{max_length} or fewer items",
    "too_short": "{min_length} or more items",
    "union_tag_invalid": "a name of {expected_tags}",
    "union_tag_not_found": "a table with a name",
}
_EXPECTED_BY_PREFIX = {
    "bool": "true or false",
    "dataclass": "a table",
    "dict": "a table",
    "float": "a number",
    "int": "an integer",
    "list": "a list",
    "model": "a table",
    "string": "text",
    "tuple": "a list",
}
"""What a key expects, by the type of pydantic's error or by the first word of that type."""


_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
"""Pydantic's types of errors for a key that a model or a dataclass does not have."""


def expected_value(error: ErrorDetails) -> str:
    """What a validation error expected, such as "a number above 0", without the given value."""
    name = error["type"]
    general = _EXPECTED_BY_PREFIX.get(name.partition("_")[0], "another value")
    return _EXPECTED.get(name, general).format_map(error.get("ctx", {}))


def first_error(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """The first validation error in one line that begins with the key.

    An unknown key gets a suggestion if `model`, the validated one, is given.
    """
    errors = error.errors()
    first, key = errors[0], _key(errors[0])
    if first["type"] in _UNKNOWN_KEY:
        return f"unknown key {key}{_suggestion(key, model)}"
    if first["type"] == "missing":
        return f"missing key {key}"
    if first["type"] == "json_invalid":
        return "expected valid JSON"
    if first["type"] == "value_error":
        reason = str(first["ctx"]["error"])
    else:
        alternatives = dict.fromkeys(
            expected_value(fault) for fault in errors if _key(fault) == key
        )
        # a table in place of a list of tables
        brackets = f" ([[{key}]] in TOML)" if isinstance(first["input"], dict) else ""
        wanted = " or ".join(name + brackets * (name == "a list") for name in alternatives)
        reason = f"expected {wanted}, got {_given(first['input'])}"
    return f"{key}: {reason}" if key else reason


_MAX_GIVEN = 60
"""Characters of a given value in an error."""


def _given(value: object) -> str:
    """The value, or what a longer table or list is."""
    text = reprlib.repr(value)
    if len(text) > _MAX_GIVEN and isinstance(value, dict | list | tuple):
        return "a table" if isinstance(value, dict) else f"a list of {len(value)}"
    return text


def error_without_input(error: ValidationError, *models: type[BaseModel]) -> str:
    """The first validation error in one line, without values and keys that were made up.

    The line begins with the position of the error, in which only keys of `models` are named.
    """
    fault = error.errors(include_url=False, include_input=False)[0]
    known = {name for model in models for name in model.model_fields}
    place = ".".join(str(part) for part in fault["loc"] if isinstance(part, int) or part in known)
    if fault["type"] == "value_error":
        reason = str(fault["ctx"]["error"])
    else:
        special = {**dict.fromkeys(_UNKNOWN_KEY, "no other keys"), "missing": "a value, got none"}
        reason = f"expected {special.get(fault['type']) or expected_value(fault)}"
    return f"{place}: {reason}" if place else reason


_UNION_MEMBER = re.compile(r"(constrained-)?(int|str|float|bool)|.+\[.*\]")
"""Pydantic's names for the members of a union, such as "constrained-int" or "literal['auto']"."""


def _key(fault: ErrorDetails) -> str:
    """Leaves out pydantic's names for the members of a union."""
    parts = [str(part) for part in fault["loc"]]
    is_key = fault["type"] in (*_UNKNOWN_KEY, "missing")  # the last part, however named
    last = parts.pop() if is_key else None
    kept = [part for part in parts if not _UNION_MEMBER.fullmatch(part)]
    return ".".join(kept if last is None else [*kept, last])


def _suggestion(key: str, kind: type[BaseModel] | None) -> str:
    """Such as "; did you mean KEY?", if the model has a similar key."""
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
    """The dotted names of all keys of a model and of the models in it."""
    for name, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        yield name
        if inner is not None:
            yield from (f"{name}.{key}" for key in _names(inner))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation such as Model, Model | None or tuple[Model, ...]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in models if model is not None), None)

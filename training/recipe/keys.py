"""The keys of a recipe with their defaults and descriptions; a merged recipe as TOML."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any, Literal, get_args, get_origin

import tomlkit
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from eulerlora.methods.fitting import FitSettings
from eulerlora.methods.registry import settings_of_fits, settings_of_trained
from eulerlora.nn.method import MethodSettings
from training.recipe.file import AnyRecipe, Layer, override_key, read_layers, read_recipe


@dataclass(frozen=True)
class RecipeKey:
    """A key of a recipe, such as `training.epochs`.

    default: as in TOML; "required" or "not set" without one. text: what it is.
    """

    name: str
    default: str
    text: str


def recipe_keys(model: type[BaseModel], prefix: str = "") -> list[RecipeKey]:
    """Returns the keys of a model and of the models in it, in order.

    A table that is a model itself is replaced by its keys.
    """
    keys: list[RecipeKey] = []
    for name, field in model.model_fields.items():
        inner = _models_in(field.annotation)
        if inner:
            keys += _keys_of_any(inner, f"{prefix}{name}.")
            continue
        choices = _choices(field.annotation)
        text = " ".join((field.description or "").split()) + (
            f" One of {', '.join(choices)}." if choices else ""
        )
        keys.append(RecipeKey(prefix + name, _default(field), text))
    return keys


def _keys_of_any(models: list[type[BaseModel]], prefix: str) -> list[RecipeKey]:
    """Returns the keys of a model, or of alternatives that differ in their `name`."""
    if len(models) == 1:
        return recipe_keys(models[0], prefix)
    names = [model.model_fields["name"].default for model in models]
    found: dict[str, list[tuple[str, RecipeKey]]] = {}
    for name, model in zip(names, models, strict=True):
        for key in recipe_keys(model, prefix):
            found.setdefault(key.name, []).append((name, key))
    return [
        RecipeKey(
            key,
            alternatives[0][1].default
            if key == f"{prefix}name"
            else " or ".join(dict.fromkeys(entry.default for _, entry in alternatives)),
            " ".join(dict.fromkeys(entry.text for _, entry in alternatives))
            + (
                f" One of {', '.join(names)}."
                if key == f"{prefix}name"
                else f" Only with {' or '.join(name for name, _ in alternatives)}."
            ),
        )
        for key, alternatives in found.items()
    ]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value)


def _choices(annotation: Any) -> list[str]:
    """Returns the values of a Literal with several of them."""
    if get_origin(annotation) is Literal and len(get_args(annotation)) > 1:
        return [str(value) for value in get_args(annotation)]
    return []


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Returns a model, also an optional one, or alternatives; none for lists and other types."""
    candidates = [
        annotation,
        *(get_args(annotation) if get_origin(annotation) is not tuple else ()),
    ]
    return list(_models(candidates))


def _models(candidates: list[Any]) -> Iterator[type[BaseModel]]:
    for candidate in candidates:
        kind = candidate.__origin__ if get_origin(candidate) is Annotated else candidate
        if kind is MethodSettings:
            yield from settings_of_trained()
        elif kind is FitSettings:
            yield from settings_of_fits()
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            yield kind


KeyPath = tuple[str, ...]

DEFAULT, COMMAND_LINE = "default", "command line"
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
VALUE_WIDTH, TEXT_WIDTH = 48, 100


def recipe_with_sources(
    path: Path, kind: type[AnyRecipe], overrides: Sequence[str] = (), variant: str | None = None
) -> list[str]:
    """Returns the lines of a recipe with all its keys, which are a recipe themselves.

    A comment above a key describes it; one beside it names the file, variant or command line that
    sets its value, or says `default`. Arguments and errors as in `read_recipe`.
    """
    recipe = read_recipe(path, kind, overrides, variant)
    layers = read_layers(path, variant)
    given = [tuple(override_key(override)) for override in overrides]
    values = recipe.model_dump(mode="json", exclude={"file", "variant", "overrides"})
    texts = {key.name: key.text for key in recipe_keys(kind)}
    lines = []
    for key, value in leaves(values):
        text = texts.pop(".".join(key), None) or texts.pop(".".join(key[:-1]), "")
        lines += (
            ["", *(f"# {line}" for line in wrap(text, TEXT_WIDTH, break_on_hyphens=False))]
            if text
            else []
        )
        lines.append(f"{_assignment(key, value):{VALUE_WIDTH}}  # {_source(key, layers, given)}")
    return lines


def leaves(tables: Mapping[str, Any], parents: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yields the values of nested tables, and empty tables, with their keys."""
    for name, value in tables.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*parents, name))
        else:
            yield (*parents, name), value


def _assignment(key: KeyPath, value: Any) -> str:
    """Returns `key = value`; a comment if the value is None, which TOML cannot state."""
    name = ".".join(
        part if BARE_KEY.fullmatch(part) else tomlkit.item(part).as_string() for part in key
    )
    if value is None:
        return f"# {name} is not set"
    if isinstance(value, list):
        return f"{name} = {_inline(value)}"
    if value == {}:
        return f"{name} = {{}}"
    return f"{name} = {tomlkit.item(value).as_string()}"


def _inline(values: Sequence[Any]) -> str:
    items = []
    for value in values:
        if isinstance(value, Mapping):
            table = tomlkit.inline_table()
            table.update({name: item for name, item in value.items() if item is not None})
            items.append(table.as_string())
        else:
            items.append(tomlkit.item(value).as_string())
    return f"[{', '.join(items)}]"


def _source(key: KeyPath, layers: Sequence[Layer], given: Sequence[KeyPath]) -> str:
    """Returns what sets a value last."""
    if any(key[: len(path)] == path or path[: len(key)] == key for path in given):
        return COMMAND_LINE
    return next((layer.source for layer in reversed(layers) if _sets(layer.tables, key)), DEFAULT)


def _sets(tables: Any, key: KeyPath) -> bool:
    """True if the tables contain the key, or a value instead of one of its tables."""
    for part in key:
        if not isinstance(tables, Mapping):
            return True
        if part not in tables:
            return False
        tables = tables[part]
    return True

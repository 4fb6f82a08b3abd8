"""A merged recipe as TOML, with what sets each of its values."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit

from training.recipe.file import AnyRecipe, Layer, override_key, read_layers, read_recipe

KeyPath = tuple[str, ...]

DEFAULT, COMMAND_LINE = "default", "command line"
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
VALUE_WIDTH = 48


def recipe_with_sources(
    path: Path, kind: type[AnyRecipe], overrides: Sequence[str] = (), variant: str | None = None
) -> list[str]:
    """Returns the lines of a recipe with all its keys, which are a recipe themselves.

    Each line ends with a comment: the file, variant or command line that sets the value, or
    `default`. Arguments and errors as in `read_recipe`.
    """
    recipe = read_recipe(path, kind, overrides, variant)
    layers = read_layers(path, variant)
    given = [tuple(override_key(override)) for override in overrides]
    values = recipe.model_dump(mode="json", exclude={"file", "variant", "overrides"})
    return [
        f"{_assignment(key, value):{VALUE_WIDTH}}  # {_source(key, layers, given)}"
        for key, value in _leaves(values)
    ]


def _leaves(tables: Mapping[str, Any], parents: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    for name, value in tables.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*parents, name))
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

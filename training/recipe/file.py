"""Recipes as TOML files: what they are based on, their variants, and overrides."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from eulerlora.errors import SettingsError
from eulerlora.settings import validated
from training.recipe.schema import Recipe

AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)
Tables = dict[str, Any]

BASE, VARIANTS = "base", "variants"


def read_recipe(
    path: Path, kind: type[AnyRecipe], overrides: Sequence[str] = (), variant: str | None = None
) -> AnyRecipe:
    """The recipe in a TOML file, or a variant of it, with overrides.

    A file may name another as its `base`, relative to itself: its own keys then replace the
    base's. Keys of the table `variants.NAME` replace those of the file for that variant alone.
    overrides: `key=value` such as `training.epochs=2`.
    Raises SettingsError, naming the file and the key, for unreadable TOML, an unknown variant or
    key, or a value out of range.
    """
    tables = _read(path)
    variants = tables.pop(VARIANTS, {})
    if variant is not None:
        if variant not in variants:
            raise SettingsError(
                f"{path}: no variant {variant!r}; it has {', '.join(variants) or 'none'}"
            )
        tables = _merged(tables, variants[variant])
    for key in ("file", "variant", "overrides"):
        if key in tables:
            raise SettingsError(f"{path}: {key}: is set on the command line, not in a recipe")
    for override in overrides:
        _apply(tables, override)
    try:
        asked = {"file": path.name, "variant": variant, "overrides": tuple(overrides)}
        return validated(kind, tables | asked)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def variant_names(path: Path) -> tuple[str, ...]:
    """The variants that a recipe file offers. Raises SettingsError for an unreadable file."""
    return tuple(_read(path).get(VARIANTS, {}))


def _read(path: Path, below: tuple[Path, ...] = ()) -> Tables:
    """A file's tables over those of its base. below: the files that are based on this one."""
    if path in below:
        raise SettingsError(f"{path}: is based on itself")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: not a readable recipe ({error})") from error
    base = tables.pop(BASE, None)
    return (
        tables if base is None else _merged(_read(path.parent / str(base), (*below, path)), tables)
    )


def _merged(tables: Mapping[str, Any], over: Mapping[str, Any]) -> Tables:
    """`tables` with the keys of `over` replaced, table by table."""
    merged = dict(tables)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(below, value)
        else:
            merged[key] = value
    return merged


def _apply(tables: Tables, override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise SettingsError(f"--set wants key=value, not {override!r}")
    *parents, last = key.strip().split(".")
    table: Any = tables
    try:
        for parent in parents:
            table = table[int(parent)] if isinstance(table, list) else table.setdefault(parent, {})
        table[last] = _value(text.strip())
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise SettingsError(f"--set {override}: the recipe has no such place") from error


def _value(text: str) -> Any:
    """A TOML value; what is not valid TOML is a string, so that quotes may be left out."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text

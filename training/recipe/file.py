"""Recipes as TOML files: packaged names, bases, variants and overrides."""

import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from eulerlora_client.errors import SettingsError
from eulerlora_client.settings import validated
from training.recipe.schema import Recipe

AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)
Tables = dict[str, Any]

RECIPES = Path(__file__).parents[1] / "recipes"
BASE, VARIANTS = "base", "variants"


def find_recipe(name: str) -> Path:
    """Returns the path of a recipe, given as a path or as the name of a packaged recipe.

    Raises SettingsError, with the packaged names, if there is neither.
    """
    path, packaged = Path(name), RECIPES / f"{name}.toml"
    if path.is_file() or path.suffix == ".toml" or path.name != name:
        return path
    if not packaged.is_file():
        similar = get_close_matches(name, recipe_names(), n=1)
        raise SettingsError(
            f"expected a recipe file or one of {', '.join(recipe_names())}, got {name!r}"
            + "".join(f"; did you mean {known}?" for known in similar)
        )
    return packaged


def recipe_names() -> list[str]:
    """Returns the names of the packaged recipes that are complete, without mere bases."""
    return sorted(path.stem for path in RECIPES.glob("*.toml") if "name" in read_toml(path))


def read_recipe(
    path: Path, kind: type[AnyRecipe], overrides: Sequence[str] = (), variant: str | None = None
) -> AnyRecipe:
    """Returns the recipe in a TOML file, or one of its variants, with overrides.

    The key `base` names another file, relative to this one, or a packaged recipe, whose keys this
    file replaces. Keys of the table `variants.NAME` replace keys of the file for that variant.
    overrides: `key=value` such as `training.epochs=2`. Raises SettingsError, with file and key, for
    an unreadable file, an unknown variant or key, or a value out of range.
    """
    tables: Tables = {}
    for layer in read_layers(path, variant):
        tables = _merged(tables, layer.tables)
    for key in ("file", "variant", "overrides"):
        if key in tables:
            raise SettingsError(f"{path}: {key} is set on the command line, not in a recipe")
    tables = with_overrides(tables, overrides)
    source = {"file": path.name, "variant": variant, "overrides": tuple(overrides)}
    try:
        return validated(kind, tables | source)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def variant_names(path: Path) -> tuple[str, ...]:
    """Returns the variants of a recipe file. Raises SettingsError for an unreadable file."""
    return tuple(_variants(_file_layers(path)))


@dataclass(frozen=True)
class Layer:
    """Tables of a recipe and what states them: the name of a file, or a variant."""

    source: str
    tables: Tables


def read_layers(path: Path, variant: str | None = None) -> list[Layer]:
    """Returns the files of a recipe, the base first, and the variant; later ones replace keys.

    Errors as in `read_recipe`.
    """
    files = _file_layers(path)
    variants = _variants(files)
    layers = [
        Layer(layer.source, {key: value for key, value in layer.tables.items() if key != VARIANTS})
        for layer in files
    ]
    if variant is None:
        return layers
    if variant not in variants:
        raise SettingsError(
            f"{path}: expected one of the variants {', '.join(variants) or '(none)'}, "
            f"got {variant!r}"
        )
    return [*layers, Layer(f"variant {variant}", variants[variant])]


def override_key(override: str) -> list[str]:
    """Returns the parts of the key of an override `key=value`. Raises SettingsError."""
    key, equals, _ = override.partition("=")
    if not equals or not key:
        raise SettingsError(f"expected --set key=value, got {override!r}")
    return key.strip().split(".")


def _variants(files: Sequence[Layer]) -> Tables:
    variants: Tables = {}
    for layer in files:
        variants = _merged(variants, layer.tables.get(VARIANTS, {}))
    return variants


def _file_layers(path: Path, derived: tuple[Path, ...] = ()) -> list[Layer]:
    """Returns the tables of a file and of its bases. derived: files based on this one."""
    if path in derived:
        raise SettingsError(f"{path}: expected a base without a cycle, got the file itself")
    tables = read_toml(path)
    base = tables.pop(BASE, None)
    if base is None:
        return [Layer(path.name, tables)]
    base_path, packaged = path.parent / str(base), RECIPES / f"{base}.toml"
    if not base_path.is_file() and packaged.is_file():
        base_path = packaged
    return [*_file_layers(base_path, (*derived, path)), Layer(path.name, tables)]


def read_toml(path: Path) -> Tables:
    """Returns the tables of a TOML file. Raises SettingsError with the path."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: expected UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: expected TOML ({error})") from error


def _merged(tables: Mapping[str, Any], over: Mapping[str, Any]) -> Tables:
    """Returns `tables` with the keys of `over` replaced, recursively."""
    merged = dict(tables)
    for key, value in over.items():
        present = merged.get(key)
        if isinstance(present, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(present, value)
        else:
            merged[key] = value
    return merged


def with_overrides(tables: Tables, overrides: Sequence[str]) -> Tables:
    """Returns tables in which `key=value` such as `training.epochs=2` replaces keys.

    Raises SettingsError for a key that cannot be in the tables.
    """
    tables = deepcopy(tables)
    for override in overrides:
        _apply(tables, override)
    return tables


def _apply(tables: Tables, override: str) -> None:
    *parents, last = override_key(override)
    text = override.partition("=")[2]
    table: Any = tables
    try:
        for parent in parents:
            table = table[int(parent)] if isinstance(table, list) else table.setdefault(parent, {})
        table[last] = _value(text.strip())
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise SettingsError(f"--set {override}: the recipe has no such key") from error


def _value(text: str) -> Any:
    """Returns a TOML value; text that is no valid TOML is a string, so quotes are optional."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text

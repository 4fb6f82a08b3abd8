"""Recipes as TOML files: packaged names, bases, variants and overrides; the keys of a recipe with
their defaults and descriptions.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import tomlkit
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from eulerlora.methods.registry import methods
from eulerlora.nn.method import MethodSettings
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.settings import toml_tables, validated
from training.recipe.schema import SOURCE, Recipe

_AnyRecipe = TypeVar("_AnyRecipe", bound=Recipe)
_Tables = dict[str, Any]

RECIPES = Path(__file__).parents[1] / "recipes"
_VARIANTS = "variants"


def find_recipe(name: str, packaged: Path = RECIPES) -> Path:
    """The path of a recipe, given as a path or as the name of a recipe in the folder `packaged`.

    Raises:
        SettingsError: With the packaged names, if there is neither.
    """
    path, file = Path(name), packaged / f"{name}.toml"
    if path.is_file() or path.suffix == ".toml" or path.name != name:
        return path
    if not file.is_file():
        names = _recipe_names(packaged)
        similar = get_close_matches(name, names, n=1)
        raise SettingsError(
            f"expected a recipe file or one of {', '.join(names)}, got {name!r}"
            + "".join(f"; did you mean {known}?" for known in similar)
        )
    return file


def _recipe_names(packaged: Path) -> list[str]:
    """The names of the packaged recipes that are complete, without mere bases."""
    return sorted(path.stem for path in packaged.glob("*.toml") if "name" in read_toml(path))


def read_recipe(
    path: Path, kind: type[_AnyRecipe], overrides: Sequence[str] = (), variant: str | None = None
) -> _AnyRecipe:
    """The recipe in a TOML file, or its `variant`, with overrides such as `training.epochs=2`.

    The key `base` names another file, relative to this one, or a packaged recipe, whose keys this
    file replaces. Keys of the table `variants.NAME` replace keys of the file for that variant.

    Raises:
        SettingsError: With key and file, or the overrides if these are at fault, for an unreadable
            file, an unknown variant or key, or a value out of range.
    """
    tables: _Tables = {}
    for layer in _read_layers(path, variant):
        tables = _merged(tables, layer.tables)
    for key in SOURCE:
        if key in tables:
            raise SettingsError(f"{path}: {key} is set on the command line, not in a recipe")
    in_file, tables = tables, _with_overrides(tables, overrides)
    source = {"file": path.name, "variant": variant, "overrides": tuple(overrides)}
    try:
        return validated(kind, tables | source)
    except SettingsError as error:
        place = str(path)
        with suppress(SettingsError):
            validated(kind, in_file | source)
            place = f"--set {' --set '.join(overrides)}"  # the file alone is right
        raise SettingsError(f"{place}: {error}") from error


@dataclass(frozen=True)
class _Layer:
    """Tables of a recipe and the name of the file, or variant, that states them."""

    source: str
    tables: _Tables


def _read_layers(path: Path, variant: str | None) -> list[_Layer]:
    """The files of a recipe, the base first, and the variant; later ones replace keys.

    Errors as in `read_recipe`.
    """
    files = _file_layers(path)
    variants: _Tables = {}
    for layer in files:
        variants = _merged(variants, layer.tables.get(_VARIANTS, {}))
    layers = [
        _Layer(
            layer.source, {key: value for key, value in layer.tables.items() if key != _VARIANTS}
        )
        for layer in files
    ]
    if variant is None:
        return layers
    if variant not in variants:
        raise SettingsError(
            f"{path}: expected one of the variants {', '.join(variants) or '(none)'}, "
            f"got {variant!r}"
        )
    return [*layers, _Layer(f"variant {variant}", variants[variant])]


def _override_key(override: str) -> list[str]:
    key, equals, _ = override.partition("=")
    if not equals or not key:
        raise SettingsError(f"expected --set key=value, got {override!r}")
    return key.strip().split(".")


def _file_layers(path: Path, derived: tuple[Path, ...] = ()) -> list[_Layer]:
    if path in derived:
        raise SettingsError(f"{path}: expected a base without a cycle, got the file itself")
    tables = read_toml(path)
    variants = tables.get(_VARIANTS, {})
    if not isinstance(variants, Mapping) or not all(
        isinstance(v, Mapping) for v in variants.values()
    ):
        raise SettingsError(f"{path}: {_VARIANTS}: expected a table for each variant")
    base = tables.pop("base", None)
    if base is None:
        return [_Layer(path.name, tables)]
    base_path, packaged = path.parent / str(base), RECIPES / f"{base}.toml"
    try:
        if not base_path.is_file() and packaged.is_file():
            base_path = packaged
    except OSError as error:  # such as a name that is too long
        raise SettingsError(f"{base_path}: cannot be read ({error.strerror})") from error
    return [*_file_layers(base_path, (*derived, path)), _Layer(path.name, tables)]


def read_toml(path: Path) -> _Tables:
    """The tables of a TOML file.

    Raises:
        SettingsError: With the path.
    """
    try:
        return toml_tables(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: expected UTF-8 text") from error
    except ValueError as error:  # a null byte in the name of a base
        raise SettingsError(f"{str(path)!r}: expected the name of a file") from error
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def _merged(tables: Mapping[str, Any], over: Mapping[str, Any]) -> _Tables:
    merged = dict(tables)
    for key, value in over.items():
        present = merged.get(key)
        if isinstance(present, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(present, value)
        else:
            merged[key] = value
    return merged


def _with_overrides(tables: _Tables, overrides: Sequence[str]) -> _Tables:
    tables = deepcopy(tables)
    for override in overrides:
        *parents, last = _override_key(override)
        value: Any = override.partition("=")[2].strip()
        table: Any = tables
        try:
            with suppress(SettingsError):  # text that is no valid TOML is a string
                value = toml_tables(f"value = {value}")["value"]
            for parent in parents:
                table = (
                    table[int(parent)] if isinstance(table, list) else table.setdefault(parent, {})
                )
            table[last] = value
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            raise SettingsError(f"--set {override}: the recipe has no such key") from error
    return tables


@dataclass(frozen=True)
class RecipeKey:
    """A key of a recipe, such as `training.epochs`.

    Attributes:
        default: As in TOML.
    """

    name: str
    default: str
    text: str


def recipe_keys(model: type[BaseModel], prefix: str = "") -> list[RecipeKey]:
    """The keys of a model in order; a table that is a model itself is replaced by its keys."""
    keys: list[RecipeKey] = []
    for name, field in model.model_fields.items():
        inner = _models_in(field.annotation)
        if inner:
            keys += _keys_of_any(inner, f"{prefix}{name}.")
            continue
        text = " ".join((field.description or "").split())
        choices = get_args(field.annotation)
        if get_origin(field.annotation) is Literal and len(choices) > 1:
            text += f" One of {', '.join(map(str, choices))}."
        keys.append(RecipeKey(prefix + name, _default(field), text))
    return keys


def _keys_of_any(models: list[type[BaseModel]], prefix: str) -> list[RecipeKey]:
    """The keys of a model, or of alternatives that differ in their `name`."""
    if len(models) == 1:
        return recipe_keys(models[0], prefix)
    names = [model.model_fields["name"].default for model in models]
    by_key: dict[str, list[tuple[str, RecipeKey]]] = {}
    for name, model in zip(names, models, strict=True):
        for key in recipe_keys(model, prefix):
            by_key.setdefault(key.name, []).append((name, key))
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
        for key, alternatives in by_key.items()
    ]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory_takes_validated_data:
        return "from other keys"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """A model, also an optional one, or alternatives; none for lists and other types."""
    inner = () if get_origin(annotation) is tuple else get_args(annotation)
    models: list[type[BaseModel]] = []
    for candidate in (annotation, *inner):
        kind = candidate.__origin__ if get_origin(candidate) is Annotated else candidate
        if kind is MethodSettings:
            models += [method.settings_type for method in methods().values()]
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            models.append(kind)
    return models


_KeyPath = tuple[str, ...]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def recipe_with_sources(
    path: Path, kind: type[_AnyRecipe], overrides: Sequence[str] = (), variant: str | None = None
) -> list[str]:
    """The lines of a recipe with all its keys, which are a recipe themselves.

    A comment above a key describes it; one beside it names the file, variant or command line that
    sets its value, or says `default`. Arguments and errors as in `read_recipe`.
    """
    recipe = read_recipe(path, kind, overrides, variant)
    layers = _read_layers(path, variant)
    given = [tuple(_override_key(override)) for override in overrides]
    values = recipe.model_dump(mode="json", exclude=SOURCE)
    texts = {key.name: key.text for key in recipe_keys(kind)}
    lines = []
    for key, value in leaves(values):
        text = texts.pop(".".join(key), None) or texts.pop(".".join(key[:-1]), "")
        lines += (
            ["", *(f"# {line}" for line in wrap(text, 100, break_on_hyphens=False))] if text else []
        )
        lines.append(f"{_assignment(key, value):48}  # {_source(key, layers, given)}")
    return lines


def leaves(tables: Mapping[str, Any], parents: _KeyPath = ()) -> Iterator[tuple[_KeyPath, Any]]:
    """Yields the values of nested tables, and empty tables, with their keys."""
    for name, value in tables.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*parents, name))
        else:
            yield (*parents, name), value


def _assignment(key: _KeyPath, value: Any) -> str:
    """`key = value`; a comment if the value is None, which TOML cannot state."""
    name = ".".join(
        part if _BARE_KEY.fullmatch(part) else tomlkit.item(part).as_string() for part in key
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


def _source(key: _KeyPath, layers: Sequence[_Layer], given: Sequence[_KeyPath]) -> str:
    if any(key[: len(path)] == path or path[: len(key)] == key for path in given):
        return "command line"
    return next((layer.source for layer in reversed(layers) if _sets(layer.tables, key)), "default")


def _sets(tables: Any, key: _KeyPath) -> bool:
    """True if the tables contain the key, or a value instead of one of its tables."""
    for part in key:
        if not isinstance(tables, Mapping):
            return True
        if part not in tables:
            return False
        tables = tables[part]
    return True

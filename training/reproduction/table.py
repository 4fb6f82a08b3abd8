"""Tables of `eulerlora reproduce`: TOML files with rows, settings and published results."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from eulerlora.errors import SettingsError
from eulerlora.settings import Mode, PositiveInt
from eulerlora.validation import Settings, validated

TABLES = Path(__file__).parents[1] / "tables"
RECIPES = Path(__file__).parents[1] / "recipes"

PublishedResult = tuple[float, float]
"""Mean and standard deviation over seeds as published; shares of images in percent."""
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class TableRow(Settings):
    """A row of a table: a variant of the recipe in one mode.

    paper: published results by metric; empty if the paper has no such row.
    """

    method: str
    variant: str
    mode: Mode
    samples: PositiveInt = 1
    paper: dict[str, PublishedResult] = {}


class Table(Settings):
    """A table of runs: one recipe with variants and seeds.

    recipe: file name of a recipe. metrics: of the test part or of `ood`. ood: kind or path of one
    of the recipe's out-of-distribution sets. paper_data: name of the data set with the paper's
    split in reports; None if the paper has no such table.
    """

    title: str
    recipe: str
    metrics: Annotated[tuple[str, ...], Field(min_length=1)]
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]
    rows: Annotated[tuple[TableRow, ...], Field(min_length=1)]
    ood: str | None = None
    paper_data: str | None = None

    @property
    def recipe_path(self) -> Path:
        """The path of the recipe."""
        return RECIPES / self.recipe

    @property
    def variants(self) -> Sequence[str]:
        """The distinct variants, in the order of the rows."""
        return tuple(dict.fromkeys(row.variant for row in self.rows))


def table_names() -> list[str]:
    """Returns the names of the tables."""
    return sorted(path.stem for path in TABLES.glob("*.toml"))


def read_table(name: str) -> Table:
    """Reads a table. Raises SettingsError for an unknown name."""
    if name not in table_names():
        raise SettingsError(f"expected one of the tables {', '.join(table_names())}, got {name!r}")
    return validated(Table, tomllib.loads((TABLES / f"{name}.toml").read_text(encoding="utf-8")))

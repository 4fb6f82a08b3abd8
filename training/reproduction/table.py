"""The tables that `eulerlora reproduce` makes: rows, settings and the paper's figures, as TOML."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from eulerlora.errors import SettingsError
from eulerlora.settings import Mode, PositiveInt, Settings, validated

TABLES = Path(__file__).parents[1] / "tables"
RECIPES = Path(__file__).parents[1] / "recipes"

Figure = tuple[float, float]
"""Mean and standard deviation over seeds, as printed: shares of images in percent."""
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class TableRow(Settings):
    """One line of a table: a variant of the recipe, asked in one mode.

    paper: the published figures by metric; empty where the paper has no such row.
    """

    method: str
    variant: str
    mode: Mode
    samples: PositiveInt = 1
    paper: dict[str, Figure] = {}


class Table(Settings):
    """A table of runs: one recipe, its variants, several seeds.

    recipe: a file among the recipes. metrics: of the test part, and those of `ood`, the kind or
    the path of one of the recipe's out-of-distribution sets. paper_data: how reports name the data
    set with the paper's split; None for a table that the paper does not have.
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
        """The recipe's file."""
        return RECIPES / self.recipe

    @property
    def variants(self) -> Sequence[str]:
        """The variants to train, each once, in the order of the rows."""
        return tuple(dict.fromkeys(row.variant for row in self.rows))


def table_names() -> list[str]:
    """The tables of the project."""
    return sorted(path.stem for path in TABLES.glob("*.toml"))


def read_table(name: str) -> Table:
    """One of the project's tables. Raises SettingsError for an unknown name."""
    if name not in table_names():
        raise SettingsError(f"no table {name!r}; there are {', '.join(table_names())}")
    return validated(Table, tomllib.loads((TABLES / f"{name}.toml").read_text(encoding="utf-8")))

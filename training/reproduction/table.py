"""Tables of `eulerlora reproduce`: TOML files with rows, settings and published results."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

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


class Arm(Settings):
    """A variant of the recipe in one mode, as in a row of the table."""

    variant: str
    mode: Mode

    @property
    def name(self) -> str:
        """The variant and the mode, such as `lora-20 det`."""
        return f"{self.variant} {self.mode}"


class Difference(Settings):
    """Metrics of one arm minus those of another."""

    metrics: Annotated[tuple[str, ...], Field(min_length=1)]
    arm: Arm
    minus: Arm


class Endpoints(Settings):
    """The endpoints of a comparison, fixed before its runs.

    primary: exactly one metric. secondary: all of their metrics are one family for the correction
    for multiple tests.
    """

    primary: Difference
    secondary: tuple[Difference, ...] = ()

    @model_validator(mode="after")
    def _has_one_primary_metric(self) -> Self:
        if len(self.primary.metrics) != 1:
            raise ValueError(
                f"expected one metric in primary, got {', '.join(self.primary.metrics)}"
            )
        return self


class Table(Settings):
    """A table of runs: one recipe with variants and seeds.

    recipe: file name of a recipe. metrics: of the test part or of `ood`. ood: kind or path of one
    of the recipe's out-of-distribution sets. paper_data: name of the data set with the paper's
    split in reports; None if the paper has no such table. endpoints: differences of rows to test,
    if any.
    """

    title: str
    recipe: str
    metrics: Annotated[tuple[str, ...], Field(min_length=1)]
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]
    rows: Annotated[tuple[TableRow, ...], Field(min_length=1)]
    ood: str | None = None
    paper_data: str | None = None
    endpoints: Endpoints | None = None

    @model_validator(mode="after")
    def _compares_its_rows(self) -> Self:
        if self.endpoints is None:
            return self
        rows = {(row.variant, row.mode) for row in self.rows}
        for difference in (self.endpoints.primary, *self.endpoints.secondary):
            for arm in (difference.arm, difference.minus):
                if (arm.variant, arm.mode) not in rows:
                    raise ValueError(f"expected endpoints of rows of the table, got {arm.name}")
            unknown = set(difference.metrics) - set(self.metrics)
            if unknown:
                raise ValueError(f"expected endpoints among metrics, got {', '.join(unknown)}")
        return self

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

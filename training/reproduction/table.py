"""Tables of `eulerlora reproduce`: TOML files with rows, settings and published results."""

import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from eulerlora.errors import SettingsError
from eulerlora.scores.ood_scores import ScoreName
from eulerlora.settings import Mode, PositiveInt
from eulerlora.validation import Settings, validated

TABLES = Path(__file__).parents[1] / "tables"
RECIPES = Path(__file__).parents[1] / "recipes"

PublishedResult = tuple[float, float]
"""Mean and standard deviation over seeds as published; shares of images in percent."""
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class TableRow(Settings):
    """A row of a table: a variant of the recipe in one mode, or published results alone.

    variant, mode: None for a row that has published results alone. paper: published results by
    metric; empty if the paper has no such row. source: publication that the paper quotes them from;
    empty for results of its own. note: printed below the table.
    """

    method: str
    variant: str | None = None
    mode: Mode | None = None
    samples: PositiveInt = 1
    paper: dict[str, PublishedResult] = {}
    source: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _has_results(self) -> Self:
        if (self.variant is None) != (self.mode is None):
            raise ValueError(f"expected variant and mode, or none of them, for {self.method}")
        if self.variant is None and not self.paper:
            raise ValueError(f"expected a variant or published results for {self.method}")
        return self


class Arm(Settings):
    """A variant of the recipe in one mode, as in a row of the table."""

    variant: str
    mode: Mode

    @property
    def name(self) -> str:
        """The variant and the mode, such as `lora-20 det`."""
        return f"{self.variant} {self.mode}"


class Difference(Settings):
    """Metrics of one arm minus those of another.

    ood: scores whose mean AUROC against far and against near sets is compared too.
    """

    metrics: Annotated[tuple[str, ...], Field(min_length=1)]
    ood: tuple[ScoreName, ...] = ()
    arm: Arm
    minus: Arm


class Reference(Settings):
    """A row that all other rows of the table are compared with, as in `Difference`."""

    metrics: Annotated[tuple[str, ...], Field(min_length=1)]
    ood: tuple[ScoreName, ...] = ()
    minus: Arm


class Endpoints(Settings):
    """The endpoints of a comparison, fixed before its runs.

    primary: exactly one metric; None if no endpoint is primary. secondary: differences, all of
    whose metrics are one family for the correction for multiple tests. reference: adds every other
    row of the table minus this one to the family.
    """

    primary: Difference | None = None
    secondary: tuple[Difference, ...] = ()
    reference: Reference | None = None

    @model_validator(mode="after")
    def _has_one_primary_metric(self) -> Self:
        if self.primary is not None and len(self.primary.metrics) != 1:
            raise ValueError(
                f"expected one metric in primary, got {', '.join(self.primary.metrics)}"
            )
        return self


class Table(Settings):
    """A table of runs: one recipe with variants and seeds.

    recipe: file name of a recipe. metrics: of the test part or of `ood`. ood: kind or path of one
    of the recipe's out-of-distribution sets. all_ood: also prints the AUROC of the MSP and of the
    feature distance on all of them. paper_data: name of the data set with the paper's split in
    reports; None if the paper has no such table. endpoints: differences of rows to test, if any.
    """

    title: str
    recipe: str
    metrics: Annotated[tuple[str, ...], Field(min_length=1)]
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]
    rows: Annotated[tuple[TableRow, ...], Field(min_length=1)]
    ood: str | None = None
    all_ood: bool = False
    paper_data: str | None = None
    endpoints: Endpoints | None = None

    @model_validator(mode="after")
    def _compares_its_rows(self) -> Self:
        if self.endpoints is None:
            return self
        primary, reference = self.endpoints.primary, self.endpoints.reference
        differences = [*self.endpoints.secondary, *([primary] if primary else [])]
        named = [arm for difference in differences for arm in (difference.arm, difference.minus)]
        named += [reference.minus] if reference else []
        for arm in named:
            if arm not in self.arms:
                raise ValueError(f"expected endpoints of rows of the table, got {arm.name}")
        metrics = [difference.metrics for difference in differences]
        metrics += [reference.metrics] if reference else []
        for names in metrics:
            unknown = set(names) - set(self.metrics)
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
        return tuple(dict.fromkeys(arm.variant for arm in self.arms))

    @property
    def arms(self) -> Sequence[Arm]:
        """The variant and mode of every row that has them, in order."""
        return tuple(
            Arm(variant=row.variant, mode=row.mode)
            for row in self.rows
            if row.variant is not None and row.mode is not None
        )

    def of_variants(self, variants: Collection[str]) -> Self:
        """Returns the table with the rows of these variants, and with the endpoints among them.

        It has no endpoints if none is left.
        """

        def left(difference: Difference) -> bool:
            return {difference.arm.variant, difference.minus.variant} <= set(variants)

        rows = tuple(row for row in self.rows if row.variant in variants)
        limited = self.model_copy(update={"rows": rows, "endpoints": None})
        if self.endpoints is None:
            return limited
        primary, reference = self.endpoints.primary, self.endpoints.reference
        endpoints = Endpoints(
            primary=primary if primary is not None and left(primary) else None,
            secondary=tuple(filter(left, self.endpoints.secondary)),
            reference=reference
            if reference is not None and reference.minus.variant in variants
            else None,
        )
        compared = limited.model_copy(update={"endpoints": endpoints})
        return compared if endpoints.primary or compared.family else limited

    @property
    def family(self) -> Sequence[Difference]:
        """The secondary differences, with those of the reference."""
        if self.endpoints is None:
            return ()
        reference = self.endpoints.reference
        others = [] if reference is None else [arm for arm in self.arms if arm != reference.minus]
        return (
            *self.endpoints.secondary,
            *(
                Difference(
                    metrics=reference.metrics, ood=reference.ood, arm=arm, minus=reference.minus
                )
                for arm in others
                if reference is not None
            ),
        )


def table_names() -> list[str]:
    """Returns the names of the tables."""
    return sorted(path.stem for path in TABLES.glob("*.toml"))


def read_table(name: str) -> Table:
    """Reads a table. Raises SettingsError for an unknown name."""
    if name not in table_names():
        raise SettingsError(f"expected one of the tables {', '.join(table_names())}, got {name!r}")
    return validated(Table, tomllib.loads((TABLES / f"{name}.toml").read_text(encoding="utf-8")))

"""Definitions of tables: TOML files with rows, settings, published results and comparisons."""

import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from eulerlora.scores.ood_scores import ScoreName
from eulerlora_client.contract.sampling import Mode
from eulerlora_client.errors import SettingsError
from eulerlora_client.settings import PositiveInt, Settings, validated
from training.recipe.file import RECIPES

DEFINITIONS = Path(__file__).parent / "definitions"

PublishedResult = tuple[float, float]
"""Mean and standard deviation over seeds as published; shares of images in percent."""
TrainingSeed = Annotated[int, Field(ge=0, lt=2**32)]


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

    @property
    def mode_title(self) -> str:
        """The mode with its samples."""
        return str(self.mode) if self.mode == "det" else f"stoch, {self.samples} samples"


class Arm(Settings):
    """A variant of the recipe in one mode, as in a row of the table."""

    variant: str
    mode: Mode

    @property
    def name(self) -> str:
        """The variant and the mode, such as `lora-20 det`."""
        return f"{self.variant} {self.mode}"


class ReferenceRow(Settings):
    """An arm that all other rows are compared with.

    ood: scores whose mean AUROC against far and against near sets is compared too.
    """

    metrics: Annotated[tuple[str, ...], Field(min_length=1)]
    ood: tuple[ScoreName, ...] = ()
    minus: Arm


class Difference(ReferenceRow):
    """Metrics of one arm minus those of another."""

    arm: Arm


class ResultTable(Settings):
    """A table of runs: one recipe with variants and seeds.

    recipe: file name of a recipe. metrics: of the test part or of `ood`. ood: kind or path of one
    of the recipe's out-of-distribution sets. all_ood: also prints the AUROC of the MSP and of the
    feature distance on all of them. paper_data: name of the data set with the paper's split in
    reports; None if the paper has no such table.

    Endpoints are fixed before the runs: primary is one difference of one metric, if any. All
    metrics of secondary, and of every other row minus that of reference, are one family for the
    correction for multiple tests.
    """

    title: str
    recipe: str
    metrics: Annotated[tuple[str, ...], Field(min_length=1)]
    seeds: Annotated[tuple[TrainingSeed, ...], Field(min_length=1)]
    rows: Annotated[tuple[TableRow, ...], Field(min_length=1)]
    ood: str | None = None
    all_ood: bool = False
    paper_data: str | None = None
    primary: Difference | None = None
    secondary: tuple[Difference, ...] = ()
    reference: ReferenceRow | None = None

    @model_validator(mode="after")
    def _compares_its_rows(self) -> Self:
        if self.primary is not None and len(self.primary.metrics) != 1:
            names = ", ".join(self.primary.metrics)
            raise ValueError(f"expected one metric in primary, got {names}")
        if self.reference is not None and self.reference.minus not in self.arms:
            raise ValueError(f"expected a row of the table, got {self.reference.minus.name}")
        for difference in self.differences():
            for arm in (difference.arm, difference.minus):
                if arm not in self.arms:
                    raise ValueError(f"expected rows of the table, got {arm.name}")
            unknown = set(difference.metrics) - set(self.metrics)
            if unknown:
                raise ValueError(f"expected metrics of the table, got {', '.join(unknown)}")
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

    def differences(self, variants: Collection[str] | None = None) -> list[Difference]:
        """Returns the endpoints between rows of these variants, first the primary one if any.

        variants: all if None.
        """
        differences = [] if self.primary is None else [self.primary]
        differences += self.secondary
        if self.reference is not None:
            facts = dict(self.reference)
            others = [arm for arm in self.arms if arm != self.reference.minus]
            differences += [Difference(**facts, arm=arm) for arm in others]
        return [
            difference
            for difference in differences
            if variants is None or {difference.arm.variant, difference.minus.variant} <= {*variants}
        ]


def table_names() -> list[str]:
    """Returns the names of the tables."""
    return sorted(path.stem for path in DEFINITIONS.glob("*.toml"))


def read_table(name: str) -> ResultTable:
    """Reads a table. Raises SettingsError for an unknown name."""
    if name not in table_names():
        raise SettingsError(f"expected one of the tables {', '.join(table_names())}, got {name!r}")
    text = (DEFINITIONS / f"{name}.toml").read_text(encoding="utf-8")
    return validated(ResultTable, tomllib.loads(text))

"""Tables of results: their definitions as TOML files, their training runs, and the runs' status."""

import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import CONFIG_FILE, read_config
from eulerlora.scores.ood_scores import ScoreName
from eulerlora_contract.errors import DataError, SettingsError
from eulerlora_contract.sampling import Options
from eulerlora_contract.settings import Settings, validated
from training.adaptation.network import members, read_backbone
from training.adaptation.train import state_file
from training.data.dataset import DataSettings
from training.data.datasets import read_dataset, read_ood_set, read_outliers
from training.evaluation.report_schema import JSON, REPORT
from training.recipe.file import find_recipe, read_recipe
from training.recipe.schema import AdapterRecipe

_DEFINITIONS = Path(__file__).parent / "definitions"
_RECIPES = Path(__file__).parents[1] / "recipes"


@dataclass(frozen=True)
class TableArm:
    """The variant and the options of a row of the table."""

    variant: str
    options: Options

    @property
    def name(self) -> str:
        """As endpoints name it, such as "eulerlora-2 stoch"."""
        return f"{self.variant} {self.options.mode}"


class TableRow(Settings):
    """A row of a table: a variant of the recipe with some options, or published results alone.

    Attributes:
        variant: With options, None for a row that has published results alone.
        options: Of the predictions, as in the reports of the runs.
        paper: Mean and standard deviation over seeds by metric, shares of images in percent.
        source: Publication that the paper quotes them from; empty for results of its own.
        note: Printed below the table.
    """

    method: str
    variant: str | None = None
    options: Options | None = None
    paper: dict[str, tuple[float, float]] = {}
    source: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _has_results(self) -> Self:
        if (self.variant is None) != (self.options is None):
            raise ValueError(f"expected variant and options, or none of them, for {self.method}")
        if self.variant is None and not self.paper:
            raise ValueError(f"expected a variant or published results for {self.method}")
        return self

    @property
    def arm(self) -> TableArm | None:
        if self.variant is None or self.options is None:
            return None
        return TableArm(self.variant, self.options)


class ReferenceRow(Settings):
    """An arm that all other rows are compared with.

    Attributes:
        minus: Name of the arm.
        ood: Scores whose mean AUROC against far and against near sets is compared too.
    """

    metrics: Annotated[tuple[str, ...], Field(min_length=1)]
    ood: tuple[ScoreName, ...] = ()
    minus: str


class Difference(ReferenceRow):
    """Metrics of one arm minus those of another, by name."""

    arm: str


class ResultTable(Settings):
    """A table of runs: one recipe with variants and seeds.

    Endpoints are fixed before the runs. All metrics of `secondary`, and of every other row minus
    that of `reference`, are one family for the correction for multiple tests.

    Attributes:
        recipe: Name of a recipe of the studies, or of a packaged one.
        metrics: Of the test part or of `ood`.
        ood: Kind or path of one of the recipe's out-of-distribution sets.
        all_ood: Also prints the AUROC of the MSP and of the feature distance on all of these sets.
        primary: One difference of one metric, if any.
    """

    title: str
    recipe: str
    metrics: Annotated[tuple[str, ...], Field(min_length=1)]
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**32)], ...], Field(min_length=1)]
    rows: Annotated[tuple[TableRow, ...], Field(min_length=1)]
    ood: str | None = None
    all_ood: bool = False
    primary: Difference | None = None
    secondary: tuple[Difference, ...] = ()
    reference: ReferenceRow | None = None

    @model_validator(mode="after")
    def _compares_its_rows(self) -> Self:
        if self.primary is not None and len(self.primary.metrics) != 1:
            names = ", ".join(self.primary.metrics)
            raise ValueError(f"expected one metric in primary, got {names}")
        if self.reference is not None and self.reference.minus not in self.arms:
            raise ValueError(f"expected a row of the table, got {self.reference.minus}")
        for difference in self.differences():
            for arm in (difference.arm, difference.minus):
                if arm not in self.arms:
                    raise ValueError(f"expected rows of the table, got {arm}")
            unknown = set(difference.metrics) - set(self.metrics)
            if unknown:
                raise ValueError(f"expected metrics of the table, got {', '.join(unknown)}")
        return self

    @property
    def recipe_path(self) -> Path:
        own = _RECIPES / f"{self.recipe}.toml"
        return own if own.is_file() else find_recipe(self.recipe)

    @property
    def variants(self) -> Sequence[str]:
        return tuple(dict.fromkeys(arm.variant for arm in self.arms.values()))

    @property
    def arms(self) -> Mapping[str, TableArm]:
        """The variant and options of every row that has them, by name."""
        return {arm.name: arm for row in self.rows if (arm := row.arm) is not None}

    def differences(self, variants: Collection[str] | None = None) -> list[Difference]:
        """The endpoints between rows of these variants, or of all; first the primary one if any."""
        differences = [] if self.primary is None else [self.primary]
        differences += self.secondary
        if self.reference is not None:
            facts = dict(self.reference)
            others = [arm for arm in self.arms if arm != self.reference.minus]
            differences += [Difference(**facts, arm=arm) for arm in others]
        arms = self.arms
        return [
            difference
            for difference in differences
            if variants is None
            or {arms[difference.arm].variant, arms[difference.minus].variant} <= {*variants}
        ]


def table_names() -> list[str]:
    return sorted(path.stem for path in _DEFINITIONS.glob("*.toml"))


def read_table(name: str) -> ResultTable:
    text = (_DEFINITIONS / f"{name}.toml").read_text(encoding="utf-8")
    return validated(ResultTable, tomllib.loads(text))


Status = Literal["new", "begun", "trained", "finished"]


@dataclass(frozen=True)
class TableRun:
    """A training run: its recipe with overrides, and its output folder."""

    file: Path
    recipe: AdapterRecipe
    out: Path

    @property
    def name(self) -> str:
        """The last parts of the run's folder, such as `cifar10/lora-20/seed-42`."""
        return "/".join(self.out.parts[-3:])

    @property
    def report_file(self) -> Path:
        """The report as JSON, the last file that a run writes."""
        return self.out / REPORT / JSON

    @property
    def status(self) -> Status:
        """`new`, `begun` (saved state), `trained` (checkpoint) or `finished` (report)."""
        if self.report_file.exists():
            return "finished"
        trained = [(folder / CONFIG_FILE).exists() for folder in self.checkpoints]
        if all(trained):
            return "trained"
        states = [state_file(folder).exists() for folder in self.checkpoints]
        return "begun" if any(trained) or any(states) else "new"

    @property
    def checkpoints(self) -> list[Path]:
        return [member.folder for member in members(self.recipe, self.out)]

    def check(self) -> None:
        """Checks that the checkpoints in the output folder are of these settings.

        Raises:
            DataError: If one is of others.
        """
        for folder in self.checkpoints:
            if not (folder / CONFIG_FILE).exists():
                continue
            recipe = read_config(folder).provenance.get("recipe", {})
            try:
                stored = validated(AdapterRecipe, recipe)
            except SettingsError as error:
                raise DataError(
                    f"{self.out}: expected a recipe in the provenance, got an invalid one ({error})"
                ) from error
            if stored.without_source != self.recipe.without_source:
                raise DataError(
                    f"{self.out}: expected a run with the given settings, got one with other "
                    "settings; choose another --out"
                )

    def config(self) -> CheckpointConfig:
        return self.configs()[0]

    def configs(self) -> list[CheckpointConfig]:
        return [read_config(folder) for folder in self.checkpoints]

    @property
    def hours(self) -> float:
        """The duration of the trainings."""
        seconds = [float(c.provenance["training"]["seconds"]) for c in self.configs()]
        return sum(seconds) / 3600

    @property
    def log(self) -> Path:
        return self.out.with_name(f"{self.out.name}.log")

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.report_file.read_text(encoding="utf-8"))
        return report

    def mode_report(self, options: Options) -> dict[str, Any]:
        modes: list[dict[str, Any]] = self.report()["modes"]
        return next(mode for mode in modes if mode["options"] == asdict(options))


def runs_of(
    table: ResultTable,
    seeds: Sequence[int],
    overrides: Sequence[str],
    folder: Path,
    variants: Sequence[str] = (),
) -> list[TableRun]:
    """The runs of a table, all variants of a seed before the next seed.

    `variants`: those to run; all if empty. Tables with the same recipe share their runs in
    `folder`.

    Raises:
        SettingsError: For overrides that leave rows of the table without results, and for unknown
            variants.
    """
    unknown = set(variants) - set(table.variants)
    if unknown:
        raise SettingsError(
            f"expected variants of the table, {', '.join(table.variants)}; got "
            f"{', '.join(sorted(unknown))}"
        )
    return [
        _run(table, variant, (*overrides, f"seed={seed}"), folder)
        for seed in seeds
        for variant in table.variants
        if not variants or variant in variants
    ]


def _run(table: ResultTable, variant: str, overrides: Sequence[str], folder: Path) -> TableRun:
    recipe = read_recipe(table.recipe_path, AdapterRecipe, overrides, variant)
    of_variant = [arm.options for arm in table.arms.values() if arm.variant == recipe.variant]
    for options in of_variant:
        for name in ("samples", "sampler", "views"):
            wanted, given = getattr(options, name), getattr(recipe.evaluation, name)
            if options.mode == "stoch" and given != wanted:
                raise SettingsError(
                    f"expected evaluation.{name} = {wanted} as in the table, got {given}"
                )
    if table.ood is not None and ood_index(table.ood, recipe) is None:
        raise SettingsError(f"expected {table.ood} in evaluation.ood, as in the table")
    out = folder / recipe.name / variant / f"seed-{recipe.seed}"
    return TableRun(table.recipe_path, recipe, out)


def ood_index(ood: str, recipe: AdapterRecipe) -> int | None:
    """The index of the out-of-distribution set with this kind or path."""
    for index, settings in enumerate(recipe.evaluation.ood):
        if ood in (settings.kind, settings.path):
            return index
    return None


def read_inputs(runs: Sequence[TableRun], data: Path) -> None:
    """Reads the weights and images of all runs once; downloads missing ones.

    An invalid input is then one error instead of one for each process.

    Raises:
        DataError: For data that cannot be used.
        SettingsError: For a recipe that does not fit its data.
        CheckpointError: For a checkpoint that is not intact.
    """
    recipes = [run.recipe for run in runs]
    for source, folder in dict.fromkeys((run.recipe.backbone, run.file.parent) for run in runs):
        read_backbone(source, folder, torch.float32)
    for settings in dict.fromkeys(recipe.data.model_dump_json() for recipe in recipes):
        read_dataset(DataSettings.model_validate_json(settings), data)
    for outliers in dict.fromkeys(recipe.outliers for recipe in recipes):
        if outliers is not None:
            read_outliers(outliers, data)
    for ood in dict.fromkeys(ood for recipe in recipes for ood in recipe.evaluation.ood):
        read_ood_set(ood, data)

"""The training runs behind a table, and how far each has come."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from eulerlora.checkpoint import CONFIG, read_config
from eulerlora.config import CheckpointConfig
from eulerlora.errors import DataError, SettingsError
from eulerlora.settings import validated
from training.adaptation.train import REPORT, state_file
from training.evaluation.report_schema import JSON
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe
from training.reproduction.table import Table

Status = Literal["new", "begun", "trained", "finished"]


@dataclass(frozen=True)
class TableRun:
    """One training run: its recipe as it will run, and its folder."""

    file: Path
    recipe: AdapterRecipe
    out: Path

    @property
    def name(self) -> str:
        """The run's folder as people read it, such as `cifar10/lora-20/seed-42`."""
        return "/".join(self.out.parts[-3:])

    @property
    def status(self) -> Status:
        """How far the run came: nothing, a state, a checkpoint, or its report too."""
        if (self.out / REPORT / JSON).exists():
            return "finished"
        if (self.out / CONFIG).exists():
            return "trained"
        return "begun" if state_file(self.out).exists() else "new"

    def check(self) -> None:
        """Raises DataError if the run's checkpoint was made with other settings than asked for."""
        if (self.out / CONFIG).exists():
            made_with = self.config().provenance.get("recipe", {})
            try:
                stored = validated(AdapterRecipe, made_with)
            except SettingsError as error:
                raise DataError(f"{self.out}: does not say what it was made with") from error
            if stored.settings_alone != self.recipe.settings_alone:
                raise DataError(f"{self.out}: holds a run with other settings; give another --out")

    def config(self) -> CheckpointConfig:
        """The config of the run's checkpoint. Raises CheckpointError for a damaged one."""
        return read_config(self.out)

    def report(self) -> dict[str, Any]:
        """The report of a finished run (`training.reporting.report`)."""
        report: dict[str, Any] = json.loads((self.out / REPORT / JSON).read_text(encoding="utf-8"))
        return report


def runs_of(
    table: Table, seeds: Sequence[int], overrides: Sequence[str], folder: Path
) -> list[TableRun]:
    """The runs of a table, variant by variant within each seed, as `--out` would hold them.

    Tables on the same recipe share their runs. Raises SettingsError for overrides with which the
    runs would not answer what the table asks.
    """
    return [
        _run(table, variant, (*overrides, f"seed={seed}"), folder)
        for seed in seeds
        for variant in table.variants
    ]


def _run(table: Table, variant: str, overrides: Sequence[str], folder: Path) -> TableRun:
    recipe = read_recipe(table.recipe_path, AdapterRecipe, overrides, variant)
    _check_answers(table, recipe)
    out = folder / recipe.name / variant / f"seed-{recipe.seed}"
    return TableRun(table.recipe_path, recipe, out)


def _check_answers(table: Table, recipe: AdapterRecipe) -> None:
    asked = recipe.evaluation
    for row in table.rows:
        if row.variant == recipe.variant and row.mode == "stoch" and row.samples != asked.samples:
            raise SettingsError(
                f"the table wants {row.samples} samples; evaluation.samples is {asked.samples}"
            )
    if table.ood is not None and ood_place(table.ood, recipe) is None:
        raise SettingsError(f"the table wants {table.ood} in evaluation.ood")


def ood_place(ood: str, recipe: AdapterRecipe) -> int | None:
    """Which of a recipe's out-of-distribution sets has this kind or path; None: none of them."""
    named = (ood in (each.kind, each.path) for each in recipe.evaluation.ood)
    return next((place for place, found in enumerate(named) if found), None)

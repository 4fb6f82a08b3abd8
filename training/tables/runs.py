"""The training runs of a table, and their status."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import CONFIG_FILE, read_config
from eulerlora_client.errors import DataError, SettingsError
from eulerlora_client.settings import validated
from training.adaptation.network import member_folders, read_backbone
from training.adaptation.train import REPORT, state_file
from training.data.datasets import read_dataset, read_ood_set, read_outliers
from training.evaluation.report_schema import JSON
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe, DataSettings
from training.tables.table import ResultTable, TableRow

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
        """The folders of the checkpoints: `out`, or those of an ensemble's members."""
        return member_folders(self.recipe, self.out)

    def check(self) -> None:
        """Raises DataError if the folder has a checkpoint of other settings than the run's."""
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
        """Reads the config of the first checkpoint. Raises CheckpointError if it is invalid."""
        return self.configs()[0]

    def configs(self) -> list[CheckpointConfig]:
        """Reads the configs of all checkpoints. Raises CheckpointError if one is invalid."""
        return [read_config(folder) for folder in self.checkpoints]

    @property
    def hours(self) -> float:
        """The duration of the trainings of a finished run."""
        seconds = [float(c.provenance["training"]["seconds"]) for c in self.configs()]
        return sum(seconds) / 3600

    @property
    def log(self) -> Path:
        """The path of the run's log, beside its folder."""
        return self.out.with_name(f"{self.out.name}.log")

    def report(self) -> dict[str, Any]:
        """Reads the JSON report of a finished run (`training.evaluation.report_schema`)."""
        report: dict[str, Any] = json.loads(self.report_file.read_text(encoding="utf-8"))
        return report

    def mode_report(self, row: TableRow) -> dict[str, Any]:
        """Reads the part of the report on a row's mode."""
        modes: list[dict[str, Any]] = self.report()["modes"]
        return next(
            mode
            for mode in modes
            if mode["mode"] == row.mode and (row.mode == "det" or mode["samples"] == row.samples)
        )


def runs_of(
    table: ResultTable,
    seeds: Sequence[int],
    overrides: Sequence[str],
    folder: Path,
    variants: Sequence[str] = (),
) -> list[TableRun]:
    """Returns the runs of a table, all variants of a seed before the next seed.

    variants: those to run; all if empty. Tables with the same recipe share their runs in `folder`.
    Raises SettingsError for overrides that leave rows of the table without results, and for unknown
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
    _check_overrides(table, recipe)
    out = folder / recipe.name / variant / f"seed-{recipe.seed}"
    return TableRun(table.recipe_path, recipe, out)


def _check_overrides(table: ResultTable, recipe: AdapterRecipe) -> None:
    """Raises SettingsError if the recipe gives no results for a row of the table."""
    samples = recipe.evaluation.samples
    for row in table.rows:
        if row.variant == recipe.variant and row.mode == "stoch" and row.samples != samples:
            raise SettingsError(
                f"expected evaluation.samples = {row.samples} as in the table, got {samples}"
            )
    if table.ood is not None and ood_index(table.ood, recipe) is None:
        raise SettingsError(f"expected {table.ood} in evaluation.ood, as in the table")


def ood_index(ood: str, recipe: AdapterRecipe) -> int | None:
    """Returns the index of the out-of-distribution set with this kind or path, or None."""
    for index, settings in enumerate(recipe.evaluation.ood):
        if ood in (settings.kind, settings.path):
            return index
    return None


def read_inputs(runs: Sequence[TableRun], data: Path) -> None:
    """Reads the weights and images of all runs once; downloads missing ones.

    An invalid input is then one error instead of one for each process. Raises DataError,
    SettingsError or CheckpointError.
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

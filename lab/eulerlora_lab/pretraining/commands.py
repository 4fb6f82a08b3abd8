"""The command `eulerlora pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora.commands import configure_openmp
from training.commands.options import data_option, out_option
from training.commands.train import (
    check_resumption,
    recipe_argument,
    resume_hint,
    run_options,
    tracking,
    with_seed,
)

if TYPE_CHECKING:
    from training.optimisation.run import Tracker

_RECIPES = Path(__file__).parent / "recipes"


@click.command(
    "pretrain",
    epilog="\b\nExample:\n  eulerlora pretrain dermoscopy-pretrain --data data --out backbone",
)
@recipe_argument
@data_option
@out_option
@run_options
def pretrain_command(
    recipe: str,
    data: Path,
    out: Path,
    seed: int | None,
    overrides: tuple[str, ...],
    resume: bool,
    restart: bool,
    skip_bad: bool,
    trackers: tuple[Tracker, ...],
    track_dir: Path | None,
    device: str,
) -> None:
    """Pretrain a backbone on one or several data sets, from scratch or from a backbone file.

    RECIPE is a file, or the name of a packaged recipe such as dermoscopy-pretrain.
    """
    configure_openmp()
    # These import torch.
    from eulerlora.model import choose_device  # noqa: PLC0415
    from eulerlora_lab.pretraining.recipe import PretrainingRecipe  # noqa: PLC0415
    from eulerlora_lab.pretraining.train import pretrain, stage_state_file  # noqa: PLC0415
    from training.recipe.file import find_recipe, read_recipe  # noqa: PLC0415

    check_resumption(resume, restart)
    path, overrides = find_recipe(recipe, _RECIPES), with_seed(overrides, seed)
    settings = read_recipe(path, PretrainingRecipe, overrides)
    states = [stage_state_file(out, stage) for stage in range(len(settings.stages))]
    with resume_hint(states):
        curves = tracking(trackers, track_dir, out, settings)
        pretrain(settings, data, out, choose_device(device), resume, skip_bad, curves, restart)

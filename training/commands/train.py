"""The commands `eulerlora pretrain` and `eulerlora train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora.commands import set_openmp_wait_policy
from training.commands.options import (
    PATH,
    checkpoint_hint,
    data_option,
    device_option,
    ignore_columns_option,
    out_option,
    recipe_argument,
    resume_hint,
    resume_option,
    seed_option,
    set_option,
    skip_bad_option,
    state_hint,
    track_options,
    tracking,
    variant_option,
)

if TYPE_CHECKING:
    from training.fit.run import Tracker


@click.command(
    "pretrain",
    epilog="\b\nExample:\n  eulerlora pretrain dermoscopy-pretrain --data data --out backbone",
)
@recipe_argument
@data_option
@out_option
@set_option
@resume_option
@seed_option
@skip_bad_option
@track_options
@device_option
def pretrain_command(
    recipe: str,
    data: Path,
    out: Path,
    seed: int | None,
    overrides: tuple[str, ...],
    resume: bool,
    skip_bad: bool,
    trackers: tuple[Tracker, ...],
    track_dir: Path | None,
    device: str,
) -> None:
    """Pretrain a backbone on one or several data sets, from scratch or from a backbone file.

    RECIPE is a file, or the name of a packaged recipe such as dermoscopy-pretrain.
    """
    set_openmp_wait_policy()
    # These import torch.
    from eulerlora.model import choose_device  # noqa: PLC0415
    from training.pretraining.train import pretrain, stage_state_file  # noqa: PLC0415
    from training.recipe.file import find_recipe, read_recipe  # noqa: PLC0415
    from training.recipe.pretraining import PretrainingRecipe  # noqa: PLC0415

    settings = read_recipe(find_recipe(recipe), PretrainingRecipe, _with_seed(overrides, seed))
    states = [stage_state_file(out, stage) for stage in range(len(settings.stages))]
    with resume_hint(lambda: state_hint(states)):
        curves = tracking(trackers, track_dir, out, settings)
        pretrain(settings, data, out, choose_device(device), resume, skip_bad, curves)


@click.command(
    "train",
    epilog="\b\nExample:\n  eulerlora train imagefolder --data pictures --out checkpoint\n\n"
    "--show prints all keys of --set with their meaning, docs/how-to/train.md how to choose them.",
)
@recipe_argument
@click.option("--data", type=PATH, help="Data directory.")
@click.option("--out", type=PATH, help="New or empty output folder.")
@set_option
@resume_option
@click.option("--check", is_flag=True, help="Check the data only; writes nothing.")
@click.option("--show", is_flag=True, help="Print the recipe: keys, their meaning, what sets them.")
@variant_option
@seed_option
@skip_bad_option
@ignore_columns_option
@track_options
@device_option
def train_command(
    recipe: str,
    data: Path | None,
    out: Path | None,
    variant: str | None,
    seed: int | None,
    overrides: tuple[str, ...],
    resume: bool,
    skip_bad: bool,
    ignore_columns: bool,
    trackers: tuple[Tracker, ...],
    track_dir: Path | None,
    check: bool,
    show: bool,
    device: str,
) -> None:
    """Train adapters on a frozen backbone; write a calibrated checkpoint to --out.

    RECIPE is a file, or the name of a packaged recipe such as imagefolder, which trains on a folder
    for each class or on the pictures of labels.csv (path, label, and optionally group and split).
    """
    set_openmp_wait_policy()
    from training.recipe.file import find_recipe, read_recipe  # noqa: PLC0415 - pydantic
    from training.recipe.schema import AdapterRecipe  # noqa: PLC0415

    path, overrides = find_recipe(recipe), _with_seed(overrides, seed)
    if ignore_columns:
        overrides = (*overrides, "data.ignore_columns=true")
    if show:
        from training.recipe.file import recipe_with_sources  # noqa: PLC0415 - tomlkit

        for line in recipe_with_sources(path, AdapterRecipe, overrides, variant):
            click.echo(line)
        return
    if data is None or (out is None and not check):
        raise click.UsageError(f"Missing option '--{'data' if data is None else 'out'}'.")
    # These import torch.
    from eulerlora.model import choose_device  # noqa: PLC0415
    from training.adaptation.network import member_folders  # noqa: PLC0415
    from training.adaptation.train import check_data, state_file, train  # noqa: PLC0415

    settings = read_recipe(path, AdapterRecipe, overrides, variant)
    if out is None or check:
        if not check_data(settings, path.parent, data):
            raise click.ClickException("a training would refuse these data")
        return
    curves = tracking(trackers, track_dir, out, settings)
    folders = member_folders(settings, out)
    states = [state_file(folder) for folder in folders]
    with resume_hint(lambda: checkpoint_hint(folders[-1], states)):
        run_on = choose_device(device)
        train(settings, path.parent, data, out, run_on, resume, skip_bad, curves)
    click.echo(f"checkpoint in {out}")


def _with_seed(overrides: tuple[str, ...], seed: int | None) -> tuple[str, ...]:
    return overrides if seed is None else (*overrides, f"seed={seed}")

"""The commands `eulerlora pretrain` and `eulerlora train`."""

from pathlib import Path

import click

from eulerlora.model import choose_device
from eulerlora.openmp import set_openmp_wait_policy
from training.adaptation.train import state_file, train
from training.commands.options import (
    PATH,
    data_option,
    device_option,
    out_option,
    resume_option,
    seed_option,
    set_option,
    skip_bad_option,
    tensorboard_option,
    variant_option,
)
from training.commands.resume_hint import kept_checkpoint, kept_state, telling_what_is_kept
from training.pretraining.train import pretrain
from training.pretraining.train import state_file as stage_state_file
from training.recipe.file import read_recipe
from training.recipe.pretraining import PretrainingRecipe
from training.recipe.schema import AdapterRecipe


@click.command("pretrain")
@click.argument("recipe", type=PATH)
@data_option
@out_option
@seed_option
@set_option
@resume_option
@skip_bad_option
@tensorboard_option
@device_option
def pretrain_command(
    recipe: Path,
    data: Path,
    out: Path,
    seed: int | None,
    overrides: tuple[str, ...],
    resume: bool,
    skip_bad: bool,
    tensorboard: Path | None,
    device: str,
) -> None:
    """Pretrain a backbone from scratch on labelled images of one or several data sets."""
    set_openmp_wait_policy()
    settings = read_recipe(recipe, PretrainingRecipe, _with_seed(overrides, seed))
    states = [stage_state_file(out, stage) for stage in range(len(settings.stages))]
    with telling_what_is_kept(lambda: kept_state(states)):
        pretrain(settings, data, out, choose_device(device), resume, skip_bad, tensorboard)


@click.command("train")
@click.argument("recipe", type=PATH)
@data_option
@out_option
@variant_option
@seed_option
@set_option
@resume_option
@skip_bad_option
@tensorboard_option
@device_option
def train_command(
    recipe: Path,
    data: Path,
    out: Path,
    variant: str | None,
    seed: int | None,
    overrides: tuple[str, ...],
    resume: bool,
    skip_bad: bool,
    tensorboard: Path | None,
    device: str,
) -> None:
    """Train adapters on a frozen backbone; leaves a calibrated checkpoint in --out."""
    set_openmp_wait_policy()
    settings = read_recipe(recipe, AdapterRecipe, _with_seed(overrides, seed), variant)
    with telling_what_is_kept(lambda: kept_checkpoint(out, state_file(out))):
        train(
            settings, recipe.parent, data, out, choose_device(device), resume, skip_bad, tensorboard
        )
    click.echo(f"checkpoint in {out}")


def _with_seed(overrides: tuple[str, ...], seed: int | None) -> tuple[str, ...]:
    return overrides if seed is None else (*overrides, f"seed={seed}")

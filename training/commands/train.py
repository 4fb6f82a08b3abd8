"""The commands `eulerlora pretrain` and `eulerlora train`."""

from pathlib import Path

import click

from eulerlora.openmp import set_openmp_wait_policy
from training.commands.options import (
    checkpoint_hint,
    data_option,
    device_option,
    out_option,
    recipe_argument,
    resume_hint,
    resume_option,
    seed_option,
    set_option,
    skip_bad_option,
    state_hint,
    tensorboard_option,
    variant_option,
)


@click.command("pretrain")
@recipe_argument
@data_option
@out_option
@seed_option
@set_option
@resume_option
@skip_bad_option
@tensorboard_option
@click.option(
    "--hours",
    type=click.FloatRange(0, min_open=True),
    metavar="H",
    help="Stop after H hours of training and store the state; continue with --resume.",
)
@device_option
def pretrain_command(
    recipe: str,
    data: Path,
    out: Path,
    seed: int | None,
    overrides: tuple[str, ...],
    resume: bool,
    skip_bad: bool,
    tensorboard: Path | None,
    hours: float | None,
    device: str,
) -> None:
    """Pretrain a backbone from scratch on one or several data sets.

    RECIPE is a file, or the name of a packaged recipe such as dermoscopy-pretrain.
    """
    set_openmp_wait_policy()
    # These import torch.
    from eulerlora.model import choose_device  # noqa: PLC0415
    from training.fit.loop import RunPaused  # noqa: PLC0415
    from training.pretraining.train import pretrain, state_file  # noqa: PLC0415
    from training.recipe.file import find_recipe, read_recipe  # noqa: PLC0415
    from training.recipe.pretraining import PretrainingRecipe  # noqa: PLC0415

    settings = read_recipe(find_recipe(recipe), PretrainingRecipe, _with_seed(overrides, seed))
    states = [state_file(out, stage) for stage in range(len(settings.stages))]
    with resume_hint(lambda: state_hint(states)):
        try:
            run_on = choose_device(device)
            pretrain(settings, data, out, run_on, resume, skip_bad, tensorboard, hours)
        except RunPaused:
            click.echo(f"{state_hint(states)}; use --resume to continue")


@click.command("train")
@recipe_argument
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
    recipe: str,
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
    """Train adapters on a frozen backbone; write a calibrated checkpoint to --out.

    RECIPE is a file, or the name of a packaged recipe such as imagefolder.
    """
    set_openmp_wait_policy()
    # These import torch.
    from eulerlora.model import choose_device  # noqa: PLC0415
    from training.adaptation.train import state_file, train  # noqa: PLC0415
    from training.recipe.file import find_recipe, read_recipe  # noqa: PLC0415
    from training.recipe.schema import AdapterRecipe  # noqa: PLC0415

    path = find_recipe(recipe)
    settings = read_recipe(path, AdapterRecipe, _with_seed(overrides, seed), variant)
    with resume_hint(lambda: checkpoint_hint(out, state_file(out))):
        train(
            settings, path.parent, data, out, choose_device(device), resume, skip_bad, tensorboard
        )
    click.echo(f"checkpoint in {out}")


def _with_seed(overrides: tuple[str, ...], seed: int | None) -> tuple[str, ...]:
    return overrides if seed is None else (*overrides, f"seed={seed}")

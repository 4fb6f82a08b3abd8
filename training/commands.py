"""The command line of training: pretrain, train, evaluate, calibrate."""

from pathlib import Path

import click

from eulerlora.model import choose_device
from training.pretrain import pretrain
from training.recipe import PretrainingRecipe, read_recipe


@click.command("pretrain")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE")
@click.option("--device", default="auto")
def pretrain_command(
    recipe: Path, data: Path, out: Path, overrides: tuple[str, ...], device: str
) -> None:
    """Pretrain a backbone from scratch on labelled images."""
    settings = read_recipe(recipe, PretrainingRecipe, overrides)
    pretrain(settings, data, out, choose_device(device))

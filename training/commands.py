"""The command line of training: pretrain, train, evaluate, calibrate."""

from pathlib import Path

import click

from eulerlora.errors import DataError
from eulerlora.model import EulerLoRA, choose_device
from eulerlora.settings import Mode
from training.calibrate import calibrate
from training.datasets import ImageParts, read_dataset
from training.evaluate import evaluate, read_ood_set
from training.kept_work import kept_checkpoint, kept_state, telling_what_is_kept
from training.pretrain import pretrain
from training.pretrain import state_file as stage_state_file
from training.recipe import AdapterRecipe, DataSettings, PretrainingRecipe, read_recipe
from training.report import markdown, write_report
from training.train import state_file, train

PATH = click.Path(path_type=Path)
QUESTIONS = {"det": ["det"], "stoch": ["stoch"], "both": ["det", "stoch"]}

data_option = click.option("--data", type=PATH, required=True, help="The data directory.")
out_option = click.option("--out", type=PATH, required=True, help="A new or empty folder.")
seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), help="Instead of the recipe's."
)
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Such as training.epochs=2."
)
resume_option = click.option(
    "--resume", is_flag=True, help="Continue an interrupted run to the same weights."
)
tensorboard_option = click.option(
    "--tensorboard", type=PATH, metavar="DIR", help="Write the run's curves there."
)
device_option = click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")


@click.command("pretrain")
@click.argument("recipe", type=PATH)
@data_option
@out_option
@seed_option
@set_option
@resume_option
@tensorboard_option
@device_option
def pretrain_command(
    recipe: Path,
    data: Path,
    out: Path,
    seed: int | None,
    overrides: tuple[str, ...],
    resume: bool,
    tensorboard: Path | None,
    device: str,
) -> None:
    """Pretrain a backbone from scratch on labelled images."""
    settings = read_recipe(recipe, PretrainingRecipe, _with_seed(overrides, seed))
    states = [stage_state_file(out, stage) for stage in range(len(settings.stages))]
    with telling_what_is_kept(lambda: kept_state(states)):
        pretrain(settings, data, out, choose_device(device), resume, tensorboard)


@click.command("train")
@click.argument("recipe", type=PATH)
@data_option
@out_option
@seed_option
@set_option
@resume_option
@tensorboard_option
@device_option
def train_command(
    recipe: Path,
    data: Path,
    out: Path,
    seed: int | None,
    overrides: tuple[str, ...],
    resume: bool,
    tensorboard: Path | None,
    device: str,
) -> None:
    """Train adapters on a frozen backbone; leaves a calibrated checkpoint in --out."""
    settings = read_recipe(recipe, AdapterRecipe, _with_seed(overrides, seed))
    with telling_what_is_kept(lambda: kept_checkpoint(out, state_file(out))):
        train(settings, recipe.parent, data, out, choose_device(device), resume, tensorboard)
    click.echo(f"checkpoint in {out}")


@click.command("evaluate")
@click.argument("checkpoint", type=PATH)
@data_option
@click.option("--ood", type=PATH, multiple=True, help="A folder or archive of other images.")
@click.option("--mode", type=click.Choice(list(QUESTIONS)), default="both")
@click.option("--samples", type=click.IntRange(1, 64), default=4, help="Per adapter, in stoch.")
@click.option("--out", type=PATH, help="Where report.json and report.md go.")
@device_option
def evaluate_command(
    checkpoint: Path,
    data: Path,
    ood: tuple[Path, ...],
    mode: str,
    samples: int,
    out: Path | None,
    device: str,
) -> None:
    """Measure a checkpoint on the test part of its data set."""
    model = EulerLoRA.load(checkpoint, device)
    questions: list[tuple[Mode, int]] = [
        ("det", 1) if each == "det" else ("stoch", samples) for each in QUESTIONS[mode]
    ]
    outside = {place.name: read_ood_set(place) for place in ood}
    report = evaluate(model, _dataset_of(model, data), outside, questions)
    click.echo(markdown(report))
    if out is not None:
        write_report(out, report)


@click.command("calibrate")
@click.argument("checkpoint", type=PATH)
@data_option
@device_option
def calibrate_command(checkpoint: Path, data: Path, device: str) -> None:
    """Set the OOD thresholds of a checkpoint from held-out images of its data set."""
    images = _dataset_of(EulerLoRA.load(checkpoint, "cpu"), data)
    for each in calibrate(checkpoint, images, choose_device(device)):
        click.echo(f"{each.mode} {each.samples}: MSP >= {each.msp:.4f} keeps {each.kept:.1%}")


def _with_seed(overrides: tuple[str, ...], seed: int | None) -> tuple[str, ...]:
    return overrides if seed is None else (*overrides, f"seed={seed}")


def _dataset_of(model: EulerLoRA, data: Path) -> ImageParts:
    """The data set that the model was trained on, read from `data`; its classes must agree."""
    settings = DataSettings.model_validate(model.config.provenance["recipe"]["data"])
    images = read_dataset(settings, data)
    names = tuple(each.name for each in images.classes)
    if names != model.classes:
        raise DataError(f"{data}: its classes {names} are not the model's {model.classes}")
    return images

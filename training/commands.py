"""The command line of training: pretrain, train, evaluate, calibrate."""

from collections.abc import Sequence
from pathlib import Path

import click

from eulerlora.errors import DataError
from eulerlora.model import EulerLoRA, choose_device
from eulerlora.settings import Mode
from training.bad_images import announce
from training.calibrate import calibrate
from training.datasets import ImageParts, read_dataset, read_ood_set
from training.evaluate import TEST, evaluate
from training.pretrain import pretrain
from training.recipe import AdapterRecipe, DataSettings, OodSettings, PretrainingRecipe
from training.recipe_file import read_recipe
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
variant_option = click.option("--variant", metavar="NAME", help="One of the recipe's variants.")
resume_option = click.option(
    "--resume", is_flag=True, help="Continue an interrupted run to the same weights."
)
skip_bad_option = click.option(
    "--skip-bad", is_flag=True, help="Leave out images that cannot be used, and list them."
)
device_option = click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")


@click.command("pretrain")
@click.argument("recipe", type=PATH)
@data_option
@out_option
@seed_option
@set_option
@resume_option
@skip_bad_option
@device_option
def pretrain_command(
    recipe: Path,
    data: Path,
    out: Path,
    seed: int | None,
    overrides: tuple[str, ...],
    resume: bool,
    skip_bad: bool,
    device: str,
) -> None:
    """Pretrain a backbone from scratch on labelled images."""
    settings = read_recipe(recipe, PretrainingRecipe, _with_seed(overrides, seed))
    try:
        pretrain(settings, data, out, choose_device(device), resume, skip_bad)
    except KeyboardInterrupt:
        raise click.ClickException(f"interrupted; --resume continues from {out}") from None


@click.command("train")
@click.argument("recipe", type=PATH)
@data_option
@out_option
@variant_option
@seed_option
@set_option
@resume_option
@skip_bad_option
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
    device: str,
) -> None:
    """Train adapters on a frozen backbone; leaves a calibrated checkpoint in --out."""
    settings = read_recipe(recipe, AdapterRecipe, _with_seed(overrides, seed), variant)
    try:
        train(settings, recipe.parent, data, out, choose_device(device), resume, skip_bad)
    except KeyboardInterrupt:
        raise click.ClickException(f"interrupted; {_kept(out)}") from None
    click.echo(f"checkpoint in {out}")


@click.command("evaluate")
@click.argument("checkpoint", type=PATH)
@data_option
@click.option("--ood", type=PATH, multiple=True, help="A folder or archive of other images.")
@click.option(
    "--ood-images",
    type=click.IntRange(1),
    metavar="N",
    help="At most N evenly spaced images of each --ood; all by default.",
)
@click.option("--mode", type=click.Choice(list(QUESTIONS)), default="both")
@click.option("--samples", type=click.IntRange(1, 64), default=4, help="Per adapter, in stoch.")
@click.option("--out", type=PATH, help="Where report.json, report.md and pictures go.")
@skip_bad_option
@device_option
def evaluate_command(
    checkpoint: Path,
    data: Path,
    ood: tuple[Path, ...],
    ood_images: int | None,
    mode: str,
    samples: int,
    out: Path | None,
    skip_bad: bool,
    device: str,
) -> None:
    """Measure a checkpoint on the test part of its data set."""
    model = EulerLoRA.load(checkpoint, device)
    questions: list[tuple[Mode, int]] = [
        ("det", 1) if each == "det" else ("stoch", samples) for each in QUESTIONS[mode]
    ]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # better refused now than after the work
    images = _dataset_of(model, data, skip_bad)
    sets = {
        name: read_ood_set(OodSettings(kind="images", path=str(place)), Path(), skip_bad)
        for name, place in _by_name(ood).items()
    }
    announce(images, *sets.values())
    outside = {name: each.images for name, each in sets.items()}
    evaluation = evaluate(model, images, outside, questions, ood_images)
    click.echo(markdown(evaluation.report))
    if out is not None:
        write_report(out, evaluation)


@click.command("calibrate")
@click.argument("checkpoint", type=PATH)
@data_option
@skip_bad_option
@device_option
def calibrate_command(checkpoint: Path, data: Path, skip_bad: bool, device: str) -> None:
    """Set the OOD thresholds of a checkpoint from held-out images of its data set."""
    images = _dataset_of(EulerLoRA.load(checkpoint, "cpu"), data, skip_bad)
    announce(images)
    for each in calibrate(checkpoint, images, choose_device(device)):
        click.echo(f"{each.mode} {each.samples}: MSP >= {each.msp:.4f} keeps {each.kept:.1%}")


def _kept(out: Path) -> str:
    """What an interrupted training leaves."""
    if out.exists():
        return f"the checkpoint in {out} is whole; --resume calibrates and evaluates it"
    if state_file(out).exists():
        return f"no checkpoint was written; --resume continues from {state_file(out)}"
    return "nothing was written"


def _by_name(places: Sequence[Path]) -> dict[str, Path]:
    """The places by their last name, with as many folders before it as tell them apart."""
    found: dict[str, Path] = {}
    for place in dict.fromkeys(places):
        parts = place.absolute().parts
        names = ("/".join(parts[start:]) for start in range(len(parts) - 1, -1, -1))
        found[next(name for name in names if name not in (TEST, *found))] = place
    return found


def _with_seed(overrides: tuple[str, ...], seed: int | None) -> tuple[str, ...]:
    return overrides if seed is None else (*overrides, f"seed={seed}")


def _dataset_of(model: EulerLoRA, data: Path, skip_bad: bool) -> ImageParts:
    """The data set that the model was trained on, read from `data`; its classes must agree."""
    settings = DataSettings.model_validate(model.config.provenance["recipe"]["data"])
    images = read_dataset(settings, data, skip_bad)
    names = tuple(each.name for each in images.classes)
    if names != model.classes:
        raise DataError(f"{data}: its classes {names} are not the model's {model.classes}")
    return images

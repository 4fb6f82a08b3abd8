"""The commands `eulerlora evaluate` and `eulerlora calibrate`."""

from collections.abc import Sequence
from pathlib import Path

import click

from eulerlora.errors import DataError
from eulerlora.model import EulerLoRA, choose_device
from eulerlora.settings import SAMPLERS, Sampler
from training.commands.options import PATH, data_option, device_option, skip_bad_option
from training.data.bad_images import announce
from training.data.datasets import ImageParts, read_dataset, read_ood_set
from training.evaluation.calibration import calibrate
from training.evaluation.evaluate import evaluate
from training.evaluation.inference import SamplingOptions
from training.evaluation.report_schema import TEST
from training.recipe.schema import DataSettings, OodSettings
from training.reporting.report import markdown, write_report

MODES = {"det": ["det"], "stoch": ["stoch"], "both": ["det", "stoch"]}


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
@click.option(
    "--corrupted-images",
    type=click.IntRange(0),
    metavar="N",
    default=500,
    show_default=True,
    help="N evenly spaced test images are blurred, made noisy, darker and brighter; 0 for none.",
)
@click.option("--mode", type=click.Choice(list(MODES)), default="both")
@click.option("--samples", type=click.IntRange(1, 64), default=4, help="Per adapter, in stoch.")
@click.option(
    "--sampler", type=click.Choice(SAMPLERS), help="Of stoch; the checkpoint's if left out."
)
@click.option("--out", type=PATH, help="Where report.json, report.md and pictures go.")
@skip_bad_option
@device_option
def evaluate_command(
    checkpoint: Path,
    data: Path,
    ood: tuple[Path, ...],
    ood_images: int | None,
    corrupted_images: int,
    mode: str,
    samples: int,
    sampler: Sampler | None,
    out: Path | None,
    skip_bad: bool,
    device: str,
) -> None:
    """Measure a checkpoint on the test part of its data set."""
    model = EulerLoRA.load(checkpoint, device)
    options = [
        SamplingOptions("det") if each == "det" else SamplingOptions("stoch", samples)
        for each in MODES[mode]
    ]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # better refused now than after the work
    images = dataset_of(model, data, skip_bad)
    sets = {
        name: read_ood_set(OodSettings(kind="images", path=str(place)), Path(), skip_bad)
        for name, place in _by_name(ood).items()
    }
    announce(images, *sets.values())
    outside = {name: each.images for name, each in sets.items()}
    evaluation = evaluate(model, images, outside, options, ood_images, corrupted_images, sampler)
    click.echo(markdown(evaluation.report))
    if out is not None:
        write_report(out, evaluation)


@click.command("calibrate")
@click.argument("checkpoint", type=PATH)
@data_option
@click.option(
    "--sampler",
    type=click.Choice(SAMPLERS),
    help="How the checkpoint draws samples from now on; as before if left out.",
)
@skip_bad_option
@device_option
def calibrate_command(
    checkpoint: Path, data: Path, sampler: Sampler | None, skip_bad: bool, device: str
) -> None:
    """Set the OOD thresholds of a checkpoint from held-out images of its data set."""
    images = dataset_of(EulerLoRA.load(checkpoint, "cpu"), data, skip_bad)
    announce(images)
    for each in calibrate(checkpoint, images, choose_device(device), sampler=sampler):
        click.echo(f"{each.mode} {each.samples}: MSP >= {each.msp:.4f} keeps {each.kept:.1%}")


def _by_name(places: Sequence[Path]) -> dict[str, Path]:
    """The places by their last name, with as many folders before it as tell them apart."""
    found: dict[str, Path] = {}
    for place in dict.fromkeys(places):
        parts = place.absolute().parts
        names = ("/".join(parts[start:]) for start in range(len(parts) - 1, -1, -1))
        found[next(name for name in names if name not in (TEST, *found))] = place
    return found


def dataset_of(model: EulerLoRA, data: Path, skip_bad: bool) -> ImageParts:
    """The data set that the model was trained on, read from `data`; its classes must agree."""
    images = read_dataset(settings_of(model), data, skip_bad)
    names = tuple(each.name for each in images.classes)
    if names != model.classes:
        raise DataError(f"{data}: its classes {names} are not the model's {model.classes}")
    return images


def settings_of(model: EulerLoRA) -> DataSettings:
    """Which data set the model was trained on, and its split."""
    return DataSettings.model_validate(model.config.provenance["recipe"]["data"])

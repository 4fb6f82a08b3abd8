"""The command `eulerlora probe`."""

from pathlib import Path

import click

from eulerlora.backbone import at_image_size, load_backbone
from eulerlora.model import choose_device
from training.adaptation.probe import linear_probe
from training.commands.options import PATH, data_option, device_option, skip_bad_option
from training.data.bad_images import announce
from training.data.datasets import read_dataset
from training.recipe.schema import DataSettings


@click.command("probe")
@click.argument("backbone", type=PATH)
@data_option
@click.option("--image-size", type=click.IntRange(1), help="In pixels; the backbone's by default.")
@skip_bad_option
@device_option
def probe_command(
    backbone: Path, data: Path, image_size: int | None, skip_bad: bool, device: str
) -> None:
    """Measure a backbone file's frozen features by a linear probe on HAM10000.

    Lesion split: fitted on the train part, measured on the calibration part.
    """
    frozen = load_backbone(backbone).backbone
    images = read_dataset(DataSettings(kind="ham10000"), data, skip_bad)
    announce(images)
    size = image_size or frozen.image_size
    found = linear_probe(at_image_size(frozen, size), images, choose_device(device))
    click.echo(
        f"{images.name}, calibration part ({found.images:,} images), {size} x {size} pixels: "
        f"accuracy {found.accuracy:.4f}, balanced accuracy {found.balanced_accuracy:.4f}, "
        f"macro-AUROC {found.macro_auroc:.4f}"
    )

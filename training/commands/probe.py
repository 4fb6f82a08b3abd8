"""The command `eulerlora probe`."""

from pathlib import Path

import click

from eulerlora.openmp import set_openmp_wait_policy
from training.commands.options import PATH, data_option, device_option, skip_bad_option


@click.command("probe")
@click.argument("backbone", type=PATH)
@data_option
@click.option(
    "--image-size", type=click.IntRange(1), help="In pixels; the backbone's size by default."
)
@skip_bad_option
@device_option
def probe_command(
    backbone: Path, data: Path, image_size: int | None, skip_bad: bool, device: str
) -> None:
    """Evaluate the frozen features of a backbone file with a linear probe on HAM10000.

    Fits the probe on the train part of the lesion split and evaluates it on the calibration part.
    """
    set_openmp_wait_policy()
    # These import torch.
    from eulerlora.backbone import at_image_size, load_backbone  # noqa: PLC0415
    from eulerlora.model import choose_device  # noqa: PLC0415
    from training.adaptation.probe import linear_probe  # noqa: PLC0415
    from training.data.datasets import read_dataset  # noqa: PLC0415
    from training.data.sources import report_skipped  # noqa: PLC0415
    from training.recipe.schema import DataSettings  # noqa: PLC0415

    file = load_backbone(backbone)
    images = read_dataset(DataSettings(kind="ham10000"), data, skip_bad)
    report_skipped(images)
    size = image_size or file.preprocessing.size
    frozen, preprocessing = at_image_size(file.backbone, size), file.preprocessing.at_size(size)
    result = linear_probe(frozen, images, choose_device(device), preprocessing)
    click.echo(
        f"{images.name}, calibration part ({result.images:,} images), {size} x {size} pixels: "
        f"accuracy {result.accuracy:.4f}, balanced accuracy {result.balanced_accuracy:.4f}, "
        f"macro-AUROC {result.macro_auroc:.4f}"
    )

"""The command `eulerlora calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora.commands import CHECKPOINT, PRECISION_CHOICES, configure_openmp, views_option
from eulerlora_contract.sampling import SAMPLERS
from training.commands.options import COVERAGES, data_option, image_options, out_option

if TYPE_CHECKING:
    from eulerlora_contract.sampling import PrecisionChoice, Sampler, Views
    from training.data.dataset import LabelTable


@click.command(
    "calibrate",
    epilog="\b\nExample:\n  eulerlora calibrate default --data data --out calibrated",
)
@click.argument("checkpoint", type=CHECKPOINT)
@data_option
@out_option
@click.option(
    "--sampler",
    type=click.Choice(SAMPLERS),
    help="New sampler of the checkpoint; unchanged by default.",
)
@views_option("New number of views of the checkpoint in mode stoch; unchanged by default.")
@click.option(
    "--coverage",
    type=COVERAGES,
    default=(),
    help="Calibrate prediction sets with these probabilities, such as 0.9,0.95. Without it, the "
    "checkpoint has none afterwards.",
)
@click.option(
    "--always-include-rare",
    is_flag=True,
    help="Put a class with too few calibration lesions for a coverage in every set (0.9 needs 9, "
    "0.95 needs 19); otherwise it is an error. HAM10000 has 8 of df and 9 of vasc.",
)
@click.option(
    "--precision",
    type=click.Choice(PRECISION_CHOICES),
    default="auto",
    show_default=True,
    help="float32; or bfloat16 too, and what it changes, by which `eulerlora serve` chooses; auto: "
    "bfloat16 too where the device has it.",
)
@image_options
def calibrate_command(
    checkpoint: Path,
    data: Path,
    out: Path,
    sampler: Sampler | None,
    views: Views | None,
    coverage: tuple[float, ...],
    always_include_rare: bool,
    precision: PrecisionChoice,
    skip_bad: bool,
    table: LabelTable,
    device: str,
) -> None:
    """Fit the OOD thresholds of a checkpoint to held-out images of its data set.

    A checkpoint of `adapt` or `eulerlora import` records no data set. --data then has pictures that
    its training was not shown, all of which are used; or parts: train for the feature means, val or
    test for the thresholds.

    Writes a new checkpoint to --out, with the weights and the model card of CHECKPOINT, which does
    not change. Its revision is another one: a policy fitted to that of CHECKPOINT does not apply.

    Each mode gets a temperature, if the calibration part has five lesions of each class.

    With --coverage also the thresholds of class-conditional prediction sets.
    """
    configure_openmp()
    # These import torch.
    from eulerlora.checkpoint.files import (  # noqa: PLC0415
        check_new_checkpoint,
        read_config,
        stored_revision,
    )
    from eulerlora.model import choose_device  # noqa: PLC0415
    from training.calibration.calibrate import calibrate_checkpoint  # noqa: PLC0415
    from training.calibration.parts import calibrated_parts, parts_table  # noqa: PLC0415
    from training.calibration.thresholds import CoverageSettings  # noqa: PLC0415
    from training.data.datasets import (  # noqa: PLC0415
        calibrated_dataset,
        check_outside_pictures,
        dataset_settings,
    )
    from training.data.images import report_skipped  # noqa: PLC0415

    if always_include_rare and not coverage:
        raise click.UsageError("--always-include-rare requires --coverage")
    stored = read_config(checkpoint)
    check_new_checkpoint(out, checkpoint)  # before the data are read
    check_outside_pictures(out, dataset_settings(stored), data)
    images = calibrated_dataset(stored, data, skip_bad, table)
    report_skipped(images)
    config = calibrate_checkpoint(
        checkpoint,
        out,
        images,
        choose_device(device),
        sampler=sampler,
        coverage=CoverageSettings(coverage, always_include_rare),
        precision=precision,
        views=views,
    )
    click.echo(parts_table(calibrated_parts(config)))
    click.echo(f"{out}: revision {stored_revision(out)[:19]}")

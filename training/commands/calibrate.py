"""The command `eulerlora calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora.commands import PRECISION_CHOICES, configure_openmp, views_option
from eulerlora_contract.program import PATH
from eulerlora_contract.sampling import SAMPLERS
from training.commands.options import COVERAGES, data_option, image_options

if TYPE_CHECKING:
    from eulerlora_contract.sampling import PrecisionChoice, Sampler, Views
    from training.data.dataset import LabelTable


@click.command(
    "calibrate",
    epilog="\b\nExample:\n  eulerlora calibrate checkpoint --data data --coverage 0.9",
)
@click.argument("checkpoint", type=PATH)
@data_option
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
    sampler: Sampler | None,
    views: Views | None,
    coverage: tuple[float, ...],
    always_include_rare: bool,
    precision: PrecisionChoice,
    skip_bad: bool,
    table: LabelTable,
    device: str,
) -> None:
    """Set the OOD thresholds of a checkpoint from held-out images of its data set.

    Changes the folder CHECKPOINT: replaces its config.json, ood.safetensors and known answer. The
    revision changes, so that a policy that was fitted to the earlier one no longer applies.

    Each mode gets a temperature, if the calibration part has five lesions of each class.

    With --coverage also the thresholds of class-conditional prediction sets.
    """
    configure_openmp()
    # These import torch.
    from eulerlora.checkpoint.files import read_config  # noqa: PLC0415
    from eulerlora.model import choose_device  # noqa: PLC0415
    from training.calibration.calibrate import calibrate  # noqa: PLC0415
    from training.calibration.parts import calibrated_parts, parts_table  # noqa: PLC0415
    from training.calibration.thresholds import CoverageSettings  # noqa: PLC0415
    from training.data.datasets import checkpoint_dataset  # noqa: PLC0415
    from training.data.images import report_skipped  # noqa: PLC0415

    if always_include_rare and not coverage:
        raise click.UsageError("--always-include-rare requires --coverage")
    images = checkpoint_dataset(read_config(checkpoint), data, skip_bad, table)
    report_skipped(images)
    config = calibrate(
        checkpoint,
        images,
        choose_device(device),
        sampler=sampler,
        coverage=CoverageSettings(coverage, always_include_rare),
        precision=precision,
        views=views,
    )
    click.echo(parts_table(calibrated_parts(config)))

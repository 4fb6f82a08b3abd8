"""The commands `eulerlora evaluate` and `eulerlora calibrate`."""

from collections.abc import Sequence
from pathlib import Path

import click

from eulerlora.commands.predict import PRECISION_CHOICES
from eulerlora.nn.openmp import set_openmp_wait_policy
from eulerlora.scores.prediction_sets import PredictionSetCalibration
from eulerlora.settings import PrecisionChoice
from eulerlora_client.contract.sampling import SAMPLERS, Sampler
from training.commands.options import (
    PATH,
    Coverages,
    data_option,
    device_option,
    precision_option,
    skip_bad_option,
)

MODES = {"det": ["det"], "stoch": ["stoch"], "both": ["det", "stoch"]}


@click.command("evaluate")
@click.argument("checkpoint", type=PATH)
@data_option
@click.option(
    "--ood",
    multiple=True,
    metavar="[GROUP:]SET",
    help="Out-of-distribution images: a folder, an archive, a generated set, or all `generated` "
    "sets. GROUP: far (default), near or shifted. Repeat it for several sets.",
)
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
    help="Evaluate also on N evenly spaced test images with blur, noise and changed brightness.",
)
@click.option("--mode", type=click.Choice(list(MODES)), default="both", show_default=True)
@click.option(
    "--samples",
    type=click.IntRange(1, 64),
    help="Samples per adapter in mode stoch; 4 by default.",
)
@click.option(
    "--sampler",
    type=click.Choice(SAMPLERS),
    help="Sampler in mode stoch; the checkpoint's by default.",
)
@click.option(
    "--sampled-from-block",
    type=click.IntRange(0),
    metavar="K",
    help="Sample the blocks from K on; the checkpoint's by default. Another value than the "
    "checkpoint's has no thresholds.",
)
@precision_option("float32", "Evaluate predictions")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for report.json, report.md, charts and predictions.csv.gz.",
)
@skip_bad_option
@device_option
def evaluate_command(
    checkpoint: Path,
    data: Path,
    ood: tuple[str, ...],
    ood_images: int | None,
    corrupted_images: int,
    mode: str,
    samples: int | None,
    sampler: Sampler | None,
    sampled_from_block: int | None,
    precision: PrecisionChoice,
    out: Path | None,
    skip_bad: bool,
    device: str,
) -> None:
    """Evaluate a checkpoint on the test part of its data set."""
    set_openmp_wait_policy()
    # These import torch, and the report matplotlib.
    from eulerlora.checkpoint.files import load_checkpoint, sampled_from  # noqa: PLC0415
    from eulerlora.model import EulerLoRA  # noqa: PLC0415
    from training.data.datasets import checkpoint_dataset  # noqa: PLC0415
    from training.data.images import report_skipped  # noqa: PLC0415
    from training.evaluation.evaluate import evaluate  # noqa: PLC0415
    from training.evaluation.inference import SamplingOptions  # noqa: PLC0415
    from training.evaluation.report_schema import TEST  # noqa: PLC0415
    from training.ood.sets import ood_sources, read_ood_sets  # noqa: PLC0415
    from training.reporting.report import markdown, write_report  # noqa: PLC0415

    if mode == "det" and samples is not None:
        raise click.UsageError("expected --samples only with --mode stoch or both, got --mode det")
    sources = ood_sources(ood)
    loaded = load_checkpoint(checkpoint)
    if sampled_from_block is not None:
        loaded = sampled_from(loaded, sampled_from_block)
    model = EulerLoRA.of(loaded, device, precision)
    options = [
        SamplingOptions("det") if name == "det" else SamplingOptions("stoch", samples or 4)
        for name in MODES[mode]
    ]
    images = checkpoint_dataset(model.config, data, skip_bad)
    sets = read_ood_sets(sources, images.parts[TEST], skip_bad)
    report_skipped(images, *sets)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # fails before the long work rather than after it
    evaluation = evaluate(model, images, sets, options, ood_images, corrupted_images, sampler)
    click.echo(markdown(evaluation.report))
    if out is not None:
        write_report(out, evaluation)


@click.command("calibrate")
@click.argument("checkpoint", type=PATH)
@data_option
@click.option(
    "--sampler",
    type=click.Choice(SAMPLERS),
    help="New sampler of the checkpoint; unchanged by default.",
)
@click.option(
    "--sampled-from-block",
    type=click.IntRange(0),
    metavar="K",
    help="New first block that the checkpoint samples; unchanged by default.",
)
@click.option(
    "--coverage",
    type=Coverages(),
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
    "precisions",
    type=click.Choice(PRECISION_CHOICES),
    multiple=True,
    default=("auto",),
    show_default=True,
    help="Fit to predictions in this precision; auto: as `eulerlora serve` on this machine. Twice "
    "to fit to both, for a checkpoint that is served on different machines.",
)
@skip_bad_option
@device_option
def calibrate_command(
    checkpoint: Path,
    data: Path,
    sampler: Sampler | None,
    sampled_from_block: int | None,
    coverage: tuple[float, ...],
    always_include_rare: bool,
    precisions: tuple[PrecisionChoice, ...],
    skip_bad: bool,
    device: str,
) -> None:
    """Set the OOD thresholds of a checkpoint from held-out images of its data set.

    With --coverage also the thresholds of class-conditional prediction sets.
    """
    set_openmp_wait_policy()
    # These import torch.
    from eulerlora.checkpoint.files import read_config  # noqa: PLC0415
    from eulerlora.model import choose_device  # noqa: PLC0415
    from training.calibration.calibrate import calibrate  # noqa: PLC0415
    from training.data.datasets import checkpoint_dataset  # noqa: PLC0415
    from training.data.images import report_skipped  # noqa: PLC0415
    from training.evaluation.prediction_sets import CoverageSettings  # noqa: PLC0415

    if always_include_rare and not coverage:
        raise click.UsageError("--always-include-rare requires --coverage")
    images = checkpoint_dataset(read_config(checkpoint), data, skip_bad)
    report_skipped(images)
    settings = CoverageSettings(coverage, always_include_rare)
    config = calibrate(
        checkpoint,
        images,
        choose_device(device),
        sampler=sampler,
        coverage=settings,
        sampled_from_block=sampled_from_block,
        precisions=precisions,
    )
    for threshold in config.thresholds:
        click.echo(
            f"{threshold.mode} {threshold.samples} in {threshold.precision}: "
            f"MSP >= {threshold.msp:.4f} keeps {threshold.kept:.1%}"
        )
    if (margins := config.margins) is not None:
        click.echo(
            f"auto and mode adaptive: label and flags of {margins.compared_with} samples in "
            f"{margins.agreement:.1%} of {margins.images} images (margins at level "
            f"{margins.level:g})"
        )
    for calibration in config.prediction_sets:
        click.echo(_set_line(calibration, [label.name for label in config.classes]))


def _set_line(calibration: PredictionSetCalibration, classes: Sequence[str]) -> str:
    """Returns the largest 1 - p of each class in a set, with the number of lesions behind it."""
    limits = (
        f"{name} {'always' if threshold == 1 else f'{threshold:.4f}'} ({count})"
        for name, threshold, count in zip(
            classes, calibration.thresholds, calibration.units, strict=True
        )
    )
    return (
        f"{calibration.mode} {calibration.samples}: sets with coverage {calibration.coverage:g}: "
        f"1 - p up to {', '.join(limits)} ({calibration.unit}s)"
    )

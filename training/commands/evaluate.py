"""The commands `eulerlora evaluate` and `eulerlora calibrate`."""

from collections.abc import Sequence
from pathlib import Path

import click

from eulerlora.openmp import set_openmp_wait_policy
from eulerlora.settings import SAMPLERS, Sampler
from training.commands.options import PATH, data_option, device_option, skip_bad_option

MODES = {"det": ["det"], "stoch": ["stoch"], "both": ["det", "stoch"]}


@click.command("evaluate")
@click.argument("checkpoint", type=PATH)
@data_option
@click.option(
    "--ood", type=PATH, multiple=True, help="Folder or archive of out-of-distribution images."
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
@click.option("--out", type=PATH, help="Folder for report.json, report.md and charts.")
@skip_bad_option
@device_option
def evaluate_command(
    checkpoint: Path,
    data: Path,
    ood: tuple[Path, ...],
    ood_images: int | None,
    corrupted_images: int,
    mode: str,
    samples: int | None,
    sampler: Sampler | None,
    out: Path | None,
    skip_bad: bool,
    device: str,
) -> None:
    """Evaluate a checkpoint on the test part of its data set."""
    set_openmp_wait_policy()
    # These import torch, and the report matplotlib.
    from eulerlora.model import EulerLoRA  # noqa: PLC0415
    from training.data.datasets import checkpoint_dataset, read_ood_set  # noqa: PLC0415
    from training.data.sources import report_skipped  # noqa: PLC0415
    from training.evaluation.evaluate import evaluate  # noqa: PLC0415
    from training.evaluation.inference import SamplingOptions  # noqa: PLC0415
    from training.recipe.schema import OodSettings  # noqa: PLC0415
    from training.reporting.report import markdown, write_report  # noqa: PLC0415

    if mode == "det" and samples is not None:
        raise click.UsageError("expected --samples only with --mode stoch or both, got --mode det")
    model = EulerLoRA.load(checkpoint, device)
    options = [
        SamplingOptions("det") if name == "det" else SamplingOptions("stoch", samples or 4)
        for name in MODES[mode]
    ]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # fails before the long work rather than after it
    images = checkpoint_dataset(model.config, data, skip_bad)
    sets = {
        name: read_ood_set(OodSettings(kind="images", path=str(path)), Path(), skip_bad)
        for name, path in _unique_names(ood).items()
    }
    report_skipped(images, *sets.values())
    ood_sets = {name: ood_set.images for name, ood_set in sets.items()}
    evaluation = evaluate(model, images, ood_sets, options, ood_images, corrupted_images, sampler)
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
@skip_bad_option
@device_option
def calibrate_command(
    checkpoint: Path, data: Path, sampler: Sampler | None, skip_bad: bool, device: str
) -> None:
    """Set the OOD thresholds of a checkpoint from held-out images of its data set."""
    set_openmp_wait_policy()
    # These import torch.
    from eulerlora.checkpoint import read_config  # noqa: PLC0415
    from eulerlora.model import choose_device  # noqa: PLC0415
    from training.data.datasets import checkpoint_dataset  # noqa: PLC0415
    from training.data.sources import report_skipped  # noqa: PLC0415
    from training.evaluation.calibration import calibrate  # noqa: PLC0415

    images = checkpoint_dataset(read_config(checkpoint), data, skip_bad)
    report_skipped(images)
    for threshold in calibrate(checkpoint, images, choose_device(device), sampler=sampler):
        click.echo(
            f"{threshold.mode} {threshold.samples}: MSP >= {threshold.msp:.4f} keeps "
            f"{threshold.kept:.1%}"
        )


def _unique_names(paths: Sequence[Path]) -> dict[str, Path]:
    """Returns the paths by name: the last components that are unique and not just "test"."""
    named: dict[str, Path] = {}
    for path in dict.fromkeys(paths):
        parts = path.absolute().parts
        names = ("/".join(parts[start:]) for start in range(len(parts) - 1, -1, -1))
        named[next(name for name in names if name not in ("test", *named))] = path
    return named

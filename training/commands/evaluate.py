"""The commands `eulerlora evaluate`, `eulerlora compare` and `eulerlora card`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora.commands import CHECKPOINT, configure_openmp, views_option
from eulerlora_contract.errors import DataError
from eulerlora_contract.program import PATH
from eulerlora_contract.sampling import (
    SAMPLERS,
    PrecisionChoice,
    Sampler,
    Views,
)
from training.commands.options import (
    check_samples,
    data_option,
    image_options,
    precision_option,
    samples_option,
)

if TYPE_CHECKING:
    from training.data.dataset import LabelTable
    from training.reporting.charts import FigureFormat

_figures_option = click.option(
    "--figures",
    type=click.Choice(["svg", "pdf"]),
    multiple=True,
    help="Write each chart in this format too, beside PNG. Repeat it for both.",
)
_MODE_CHOICES = {"det": ["det"], "stoch": ["stoch"], "both": ["det", "stoch"]}


@click.command(
    "evaluate",
    epilog="\b\nExample:\n  eulerlora evaluate checkpoint --data data --mode stoch --out report",
)
@click.argument("checkpoint", type=CHECKPOINT)
@data_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="A new folder for report.json, report.md, charts, results.csv and predictions.csv.gz.",
)
@_figures_option
@click.option(
    "--pictures",
    is_flag=True,
    help="Add charts with test images to the report: the twelve most uncertain, and twelve with a "
    "wrong label.",
)
@click.option("--mode", type=click.Choice(list(_MODE_CHOICES)), default="both", show_default=True)
@samples_option
@click.option(
    "--ood",
    multiple=True,
    metavar="[GROUP:]SET",
    help="Out-of-distribution images: a folder, an archive, or with eulerlora-lab a generated set "
    "or all `generated` sets. GROUP: far (default), near or shifted. Repeat it for several sets.",
)
@click.option(
    "--ood-images",
    type=click.IntRange(1),
    metavar="N",
    help="At most N evenly spaced images of each --ood; all by default.",
)
@click.option(
    "--sampler",
    type=click.Choice(SAMPLERS),
    help="Sampler in mode stoch; the checkpoint's by default.",
)
@views_option(
    "Flips and turns of an image that its trajectories share between them, in all modes; by "
    "default the checkpoint's in mode stoch, and 1 in mode det."
)
@precision_option("float32", "Evaluate predictions")
@image_options
def evaluate_command(
    checkpoint: Path,
    data: Path,
    ood: tuple[str, ...],
    ood_images: int | None,
    mode: str,
    samples: int | None,
    sampler: Sampler | None,
    views: Views | None,
    precision: PrecisionChoice,
    out: Path | None,
    figures: tuple[FigureFormat, ...],
    pictures: bool,
    skip_bad: bool,
    table: LabelTable,
    device: str,
) -> None:
    """Evaluate a checkpoint on the test part of its data set, or on all images of another folder.

    A folder is another one if it has neither the name nor the train part of the training's. Images
    of it that were in the training, and others of their groups, are left out.
    """
    configure_openmp()
    # These import torch, and the report matplotlib.
    from eulerlora.model import EulerLoRA  # noqa: PLC0415
    from eulerlora_contract.output_files import check_free, new_folder  # noqa: PLC0415
    from training.data.datasets import (  # noqa: PLC0415
        check_outside_pictures,
        dataset_settings,
        evaluated_dataset,
    )
    from training.data.images import report_skipped  # noqa: PLC0415
    from training.evaluation.evaluate import evaluate  # noqa: PLC0415
    from training.evaluation.ood_sets import ood_sources, read_ood_sets  # noqa: PLC0415
    from training.evaluation.report_schema import JSON, TEST  # noqa: PLC0415
    from training.reporting.report import markdown, write_report  # noqa: PLC0415

    check_samples(mode, samples)
    if out is None and (figures or pictures):
        raise click.UsageError("expected --out with --figures or --pictures")
    sources = ood_sources(ood)
    model = EulerLoRA.load(checkpoint, device, precision)
    options = [
        model.options("det", views=views)
        if name == "det"
        else model.options("stoch", samples, sampler, views)
        for name in _MODE_CHOICES[mode]
    ]
    if out is not None:
        check_outside_pictures(out, dataset_settings(model.config), data)
    images = evaluated_dataset(model.config, checkpoint, data, skip_bad, table)
    sets = read_ood_sets(sources, images.parts[TEST], skip_bad)
    report_skipped(images, *sets)
    if out is not None:
        check_free(out)  # fails before the long work rather than after it
    evaluation = evaluate(model, images, sets, options, ood_images)
    click.echo(markdown(evaluation.report))
    if out is not None:
        with new_folder(out, last=JSON) as partial:
            write_report(partial, evaluation, figures, pictures)


@click.command(
    "compare",
    epilog="\b\nExample:\n  eulerlora compare runs/* --reference runs/lora-0 --out comparison",
)
@click.argument("runs", type=PATH, nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--reference",
    type=PATH,
    metavar="RUN",
    help="All methods are compared with that of this run; by default with that of the first one.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    default=("accuracy", "nll"),
    show_default=True,
    metavar="NAME",
    help="What is tested, with Holm's correction for all tests together: accuracy, nll, ece, "
    "brier, aurc, macro_auroc, far_msp or near_msp. Repeat it for several.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="A new folder for the tables as Markdown, LaTeX and CSV, and charts with all methods.",
)
@_figures_option
def compare_command(
    runs: tuple[Path, ...],
    reference: Path | None,
    metrics: tuple[str, ...],
    out: Path | None,
    figures: tuple[FigureFormat, ...],
) -> None:
    """Compare training runs of any methods and seeds on the same test images.

    RUN is the output folder of a training, or a folder written by `evaluate --out`. Runs whose
    recipes differ in the seed alone are one method: mean and standard deviation. The differences
    are those of the seeds that both methods have, with paired intervals for new images and seeds.
    """
    # These import torch and matplotlib.
    from eulerlora_contract.output_files import check_free, new_folder  # noqa: PLC0415
    from training.reporting.comparison import (  # noqa: PLC0415
        COMPARISON,
        compare_runs,
        comparison_markdown,
        write_comparison,
    )

    if len(runs) < 2:
        raise click.UsageError("expected at least two runs, got one")
    if out is None and figures:
        raise click.UsageError("expected --out with --figures")
    if out is not None:
        check_free(out)
    comparison = compare_runs(runs, reference, metrics)
    click.echo(comparison_markdown(comparison))
    if out is not None:
        with new_folder(out, last=COMPARISON) as partial:
            write_comparison(partial, comparison, figures)


@click.command(
    "card",
    epilog="\b\nExample:\n  eulerlora card checkpoint --report report",
)
@click.argument("checkpoint", type=PATH)
@click.option("--report", type=PATH, required=True, help="Folder written by `evaluate --out`.")
@click.option(
    "--section",
    "sections",
    type=PATH,
    multiple=True,
    help="Markdown file with a heading, added after the results. Repeat it for several.",
)
def card_command(checkpoint: Path, report: Path, sections: tuple[Path, ...]) -> None:
    """Write the model card of a checkpoint, its README.md, from its report."""
    from training.reporting.model_card import write_model_card  # noqa: PLC0415 - imports matplotlib

    write_model_card(checkpoint, report, [_read_text(path) for path in sections])


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: expected a readable UTF-8 text file") from error

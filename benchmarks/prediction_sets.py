"""Coverage of a checkpoint's prediction sets: `python -m benchmarks.prediction_sets --data DIR`.

Prints, for each calibrated coverage and class, the share of lesions that are covered in all of
their images, with exact 95% intervals, on the test part of the checkpoint's data set. `--labelled
FOLDER` measures other labelled pictures instead: a sub-folder for each label, or `labels.csv`.
"""

from collections.abc import Sequence
from pathlib import Path

import click

from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT
from eulerlora.errors import DataError
from eulerlora.model import EulerLoRA
from training.data.datasets import checkpoint_dataset
from training.data.images import LabelledImage
from training.data.local_images import LabelNames, read_local_images
from training.evaluation.inference import SamplingOptions, predict_all
from training.evaluation.prediction_sets import set_coverages
from training.evaluation.report_schema import TEST
from training.reporting.tables import prediction_set_table

MODES = (SamplingOptions("det"), SamplingOptions("stoch", 4))


@click.command()
@click.option("--checkpoint", type=click.Path(path_type=Path), default=DEFAULT_CHECKPOINT)
@click.option("--data", type=click.Path(path_type=Path), help="The checkpoint's data directory.")
@click.option("--labelled", type=click.Path(path_type=Path), help="Folder of labelled pictures.")
@click.option(
    "--class", "renamed", multiple=True, metavar="LABEL=CLASS", help="The class of a local label."
)
@click.option("--ignore", multiple=True, metavar="LABEL", help="Leave out a local label.")
def main(
    checkpoint: Path,
    data: Path | None,
    labelled: Path | None,
    renamed: tuple[str, ...],
    ignore: tuple[str, ...],
) -> None:
    """Measure coverage and size of the sets, in det and in stoch with 4 samples."""
    if (data is None) == (labelled is None):
        raise click.UsageError("expected one of --data and --labelled")
    model = EulerLoRA.load(checkpoint)
    if data is not None:
        images = checkpoint_dataset(model.config, data).parts[TEST]
    else:
        assert labelled is not None
        classes = dict(entry.split("=", 1) for entry in renamed)
        names = LabelNames(model.classes, classes, ignore)
        images = read_local_images(labelled, names).images
    click.echo(coverage_tables(model, images))


def coverage_tables(model: EulerLoRA, images: Sequence[LabelledImage]) -> str:
    """Returns a Markdown table for each of MODES. Raises DataError without prediction sets."""
    if not model.config.prediction_sets:
        raise DataError("expected a checkpoint with prediction sets, got one without")
    outputs = predict_all(model, images, MODES, "coverage")
    return "\n\n".join(
        f"{options.mode}, {options.samples}\n\n"
        + prediction_set_table(
            set_coverages(model, options, model.config.sampler, output.probabilities(), images)
        )
        for options, output in zip(MODES, outputs, strict=True)
    )


if __name__ == "__main__":
    main()

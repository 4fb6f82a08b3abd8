"""The command `eulerlora predict`. Importing this module is fast: `--help` imports it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eulerlora.nn.openmp import set_openmp_wait_policy
from eulerlora_client.commands.triage import SamplesParameter
from eulerlora_client.printable import printable

if TYPE_CHECKING:
    from eulerlora.settings import PrecisionChoice
    from eulerlora_client.contract.sampling import Auto, Mode


PRECISION_CHOICES = ("auto", "float32", "bfloat16")


class Coverage(click.ParamType[float]):
    """The coverage of prediction sets, above 0 and below 1."""

    name = "0-1"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self.name

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        coverage: float = click.FLOAT.convert(value, param, ctx)
        if not 0 < coverage < 1:
            self.fail(f"expected a number between 0 and 1, got {value}", param, ctx)
        return coverage


@click.command("predict")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("images", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--mode",
    type=click.Choice(["det", "stoch"]),
    default="det",
    show_default=True,
)
@click.option(
    "--samples",
    type=SamplesParameter(),
    help="Per adapter, only with stoch; default 4. auto: a pass in det, then samples where the "
    "label or a flag is not settled.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), help="Default: derived from the image's content."
)
@click.option(
    "--coverage",
    type=Coverage(),
    help="Add the prediction set with this probability, such as 0.9, if the checkpoint is "
    "calibrated for it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Write a CSV file.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option(
    "--precision",
    type=click.Choice(PRECISION_CHOICES),
    default="float32",
    show_default=True,
    help="Data type of the matrix products; auto: bfloat16 if it is fast and changes little.",
)
def predict_command(
    checkpoint: Path,
    images: tuple[Path, ...],
    mode: "Mode",
    samples: "int | Auto | None",
    seed: int | None,
    coverage: float | None,
    as_json: bool,
    csv_file: Path | None,
    device: str,
    precision: "PrecisionChoice",
) -> None:
    """Predict the classes of image files, or of all images below folders.

    A file that cannot be read is reported on stderr and the other files are predicted; the exit
    status is then 1.
    """
    set_openmp_wait_policy()
    if mode != "stoch" and samples is not None:
        raise click.UsageError("--samples requires --mode stoch")
    if as_json and csv_file is not None:
        raise click.UsageError("expected one of --json and --csv, got both")

    from eulerlora.commands.file_predictions import (  # noqa: PLC0415
        check_output,
        expand_folders,
        json_line,
        predict_files,
        text_line,
        write_csv,
    )
    from eulerlora.model import EulerLoRA  # noqa: PLC0415 - imports torch

    files = expand_folders(images)
    if csv_file is not None:
        check_output(csv_file, [*files, *checkpoint.glob("*")])
    model = EulerLoRA.load(checkpoint, device, precision)
    options = model.predict_options(mode, samples, seed, coverage=coverage)
    failures: list[str] = []

    def report_failure(message: str) -> None:
        failures.append(message)
        click.echo(printable(f"eulerlora: {message}", sys.stderr.encoding or "utf-8"), err=True)

    def report_warning(message: str) -> None:
        line = f"eulerlora: warning: {message}"
        click.echo(printable(line, sys.stderr.encoding or "utf-8"), err=True)

    predictions = predict_files(model, files, options, report_failure, report_warning)
    if csv_file is not None:
        write_csv(csv_file, predictions, model.classes, options)
    else:
        encoding = sys.stdout.encoding or "utf-8"  # None for io.StringIO
        for prediction in predictions:
            click.echo(json_line(prediction) if as_json else text_line(prediction, encoding))
    if failures:
        raise click.ClickException(f"{len(failures)} of {len(files)} images could not be read")

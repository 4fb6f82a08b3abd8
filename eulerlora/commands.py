"""The command `eulerlora predict`: answers for image files, without a server."""

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import click

from eulerlora.adaptive_sampling import StandardErrors
from eulerlora.errors import DataError, ImageError
from eulerlora.image_files import EXTENSIONS, image_files
from eulerlora.model import EulerLoRA
from eulerlora.options import Samples
from eulerlora.prediction import Prediction
from eulerlora.settings import PRECISIONS, Auto, Mode, Precision

DEFAULT_SAMPLES = 4

Answer = dict[str, Any]


@click.command("predict")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("images", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--mode", type=click.Choice(["det", "stoch"]), default="det")
@click.option("--samples", type=Samples(), help="Per adapter, in stoch; 4 by default.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="From each image if left out.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Write a CSV file.")
@click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
@click.option("--precision", type=click.Choice(PRECISIONS), default="float32", show_default=True)
def predict_command(
    checkpoint: Path,
    images: tuple[Path, ...],
    mode: Mode,
    samples: int | Auto | None,
    seed: int | None,
    as_json: bool,
    csv_file: Path | None,
    device: str,
    precision: Precision,
) -> None:
    """Answer for image files, or for all images below folders.

    A file that cannot be opened is reported on stderr; the others are still answered, and the
    exit status is 1.
    """
    if mode == "det" and samples is not None:
        raise click.UsageError("--samples belongs to --mode stoch")
    if as_json and csv_file is not None:
        raise click.UsageError("wanted one of --json and --csv, not both")
    model = EulerLoRA.load(checkpoint, device, precision)
    failures: list[str] = []
    answers = _answers(
        model, list(_files(images)), mode, samples or DEFAULT_SAMPLES, seed, failures
    )
    if csv_file is not None:
        with csv_file.open("w", newline="") as file:
            _write_csv(file, answers)
    else:
        for answer in answers:
            click.echo(json.dumps(answer) if as_json else _line(answer))
    if failures:
        raise click.ClickException(f"{len(failures)} of the images could not be answered")


def _files(places: Iterable[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_dir():
            found = image_files(place)
            if not found:
                raise DataError(f"{place}: holds no images ({', '.join(EXTENSIONS)})")
            yield from found
        else:
            yield place


def _answers(
    model: EulerLoRA,
    files: list[Path],
    mode: Mode,
    samples: int | Auto,
    seed: int | None,
    failures: list[str],
) -> Iterator[Answer]:
    for file in files:
        try:
            prediction = model.predict([file], mode, samples, seed)
        except ImageError as error:
            failures.append(str(error))
            print(f"eulerlora: {error}", file=sys.stderr)
        else:
            yield _answer(file, prediction, model.classes)


def _answer(file: Path, prediction: Prediction, classes: tuple[str, ...]) -> Answer:
    return {
        "file": str(file),
        "label": prediction.labels[0],
        "samples": int(prediction.samples[0]),
        "msp": float(prediction.msp[0]),
        "entropy": float(prediction.entropy[0]),
        "expected_entropy": float(prediction.expected_entropy[0]),
        "mutual_information": float(prediction.mutual_information[0]),
        "ood": None if prediction.ood is None else bool(prediction.ood[0]),
        **_errors(prediction.standard_errors),
        "probabilities": dict(zip(classes, prediction.probabilities[0].tolist(), strict=True)),
    }


def _errors(found: StandardErrors | None) -> Answer:
    if found is None:
        return {}
    return {
        "msp_standard_error": float(found.msp[0]),
        "entropy_standard_error": float(found.entropy[0]),
    }


def _line(answer: Answer) -> str:
    flag = {None: "", True: "  out of distribution", False: ""}[answer["ood"]]
    return (
        f"{answer['file']}: {answer['label']} {answer['msp']:.3f}, H {answer['entropy']:.3f}{flag}"
    )


def _write_csv(file: TextIO, answers: Iterable[Answer]) -> None:
    writer: csv.DictWriter[str] | None = None
    for answer in answers:
        flat = {key: value for key, value in answer.items() if key != "probabilities"}
        flat |= {f"p_{name}": value for name, value in answer["probabilities"].items()}
        if writer is None:
            writer = csv.DictWriter(file, fieldnames=list(flat))
            writer.writeheader()
        writer.writerow(flat)

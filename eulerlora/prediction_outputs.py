"""Predictions for image files as text lines, JSON lines or a CSV file."""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from eulerlora.atomic_files import open_output
from eulerlora.errors import OutputPathError
from eulerlora.file_predictions import PREDICTION_SET, FilePrediction, Value
from eulerlora.model import PredictOptions
from eulerlora.printable import csv_path, csv_text, printable

FIELDS = (
    "file",
    "label",
    "samples",
    "msp",
    "entropy",
    "expected_entropy",
    "mutual_information",
    "ood",
    "energy",
    "feature_distance",
    "unfamiliar",
)
LIST_SEPARATOR = "; "
ADAPTIVE_FIELDS = ("sampled", "rows")
ERROR_FIELDS = ("msp_standard_error", "entropy_standard_error")


def check_output(path: Path, inputs: Iterable[Path]) -> None:
    """Raises OutputPathError if writing `path` would overwrite one of the inputs."""
    if path.exists():
        for file in inputs:
            if file.exists() and file.samefile(path):
                raise OutputPathError(f"{path} is an input file and cannot be the output file")


def json_line(prediction: FilePrediction) -> str:
    """Returns a prediction as a JSON object without line breaks, in ASCII."""
    warnings = [asdict(warning) for warning in prediction.warnings]
    rest = {"probabilities": prediction.probabilities, "warnings": warnings}
    return json.dumps(prediction.fields | rest)


def text_line(prediction: FilePrediction, encoding: str = "utf-8") -> str:
    """Returns a prediction as a line for people: file, label, MSP, entropy, flags and set.

    encoding: of the output. Control characters and bytes that are not UTF-8 are escaped.
    """
    fields = prediction.fields
    flags = "  out of distribution" if fields["ood"] else ""
    flags += "  unfamiliar" if fields["unfamiliar"] else ""
    labels = fields.get(PREDICTION_SET)
    included = f"  {{{', '.join(labels)}}}" if isinstance(labels, list) else ""
    summary = f"{fields['label']} {fields['msp']:.3f}, H {fields['entropy']:.3f}"
    return printable(f"{fields['file']}: {summary}{flags}{included}", encoding)


def write_csv(
    path: Path,
    predictions: Iterable[FilePrediction],
    classes: Sequence[str],
    options: PredictOptions,
) -> None:
    """Writes a CSV file with one row per prediction; a regular file is complete or unchanged.

    Lists are separated by `; `, and missing values are empty. No cell is a formula of a
    spreadsheet. On a terminal, names of files are escaped. options: of the predictions. Raises
    StorageError.
    """
    errors = ERROR_FIELDS if options.adaptive else ()
    adaptive = ADAPTIVE_FIELDS if options.det_first else ()
    sets = () if options.coverage is None else (PREDICTION_SET,)
    names = [*FIELDS[1:], *errors, *adaptive, *sets]
    header = [FIELDS[0], *names, "warnings", *(f"p_{name}" for name in classes)]
    with open_output(path) as file:
        writer = csv.writer(file)
        writer.writerow(map(csv_text, header))
        for prediction in predictions:
            name = str(prediction.fields[FIELDS[0]])
            shown = csv_text(name) if file.isatty() else csv_path(name)
            cells = [_cell(prediction.fields[field]) for field in names]
            warnings = _cell([warning.message for warning in prediction.warnings])
            probabilities = [prediction.probabilities[label] for label in classes]
            writer.writerow([shown, *cells, warnings, *probabilities])


def _cell(value: Value) -> str | int | float | None:
    if isinstance(value, list):
        value = LIST_SEPARATOR.join(value)
    return csv_text(value) if isinstance(value, str) else value

"""Predictions for image files in batches.

Predictions for image files as text lines, JSON lines or a CSV file.
"""

import csv
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from eulerlora.errors import DataError, ImageError, OutputPathError
from eulerlora.images.files import EXTENSIONS, image_files, read_image
from eulerlora.images.preprocess import Conversion, ImageWarning
from eulerlora.model import EulerLoRA, ModelInput, PredictOptions
from eulerlora.prediction.answer import Prediction
from eulerlora.scores.ood_scores import ScoreName
from eulerlora_client.output_files import open_output
from eulerlora_client.printable import csv_path, csv_text, printable

MAX_BATCH_IMAGES = 32  # limits the memory of a batch on a device without a limit of rows per pass
PREDICTION_SET = "prediction_set"

Value = str | int | float | bool | list[str] | None


@dataclass(frozen=True)
class FilePrediction:
    """The prediction for one file.

    fields: values by output field, without the probabilities. probabilities: by class name.
    warnings: the conversions of the image.
    """

    fields: dict[str, Value]
    probabilities: dict[str, float]
    warnings: tuple[ImageWarning, ...]


@dataclass(frozen=True)
class ReadableFile:
    """A file with its network input and the conversions of its image."""

    path: Path
    inputs: ModelInput
    warnings: tuple[ImageWarning, ...]


def expand_folders(paths: Iterable[Path]) -> list[Path]:
    """Returns the files among `paths` and all images below its folders, in order.

    Raises DataError for a folder without images.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            images = image_files(path)
            if not images:
                raise DataError(f"{path}: contains no images ({', '.join(EXTENSIONS)})")
            files += images
        else:
            files.append(path)
    return files


def predict_files(
    model: EulerLoRA,
    files: Iterable[Path],
    options: PredictOptions,
    on_failure: Callable[[str], None],
    on_warning: Callable[[str], None],
) -> Iterator[FilePrediction]:
    """Yields the prediction of every readable file, in order.

    A batch has as many images as the runtime runs in one pass. on_failure: called with the reason
    for every file that cannot be read. on_warning: called once with every warning of the
    predictions, and with every colour profile that is ignored. Raises NonFiniteError.
    """
    warned: set[str] = set()
    readable = _read(model, files, options, on_failure)
    batch_size = images_per_batch(model, options)
    while batch := list(itertools.islice(readable, batch_size)):
        prediction = model.predict_inputs([file.inputs for file in batch], options)
        for warning in sorted(set(prediction.warnings) - warned):
            on_warning(warning)
        warned.update(prediction.warnings)
        for index, file in enumerate(batch):
            for ignored in file.warnings:
                if ignored.code is Conversion.PROFILE_IGNORED:
                    on_warning(f"{file.path}: {ignored.message}")
            yield _file_prediction(file, prediction, index, model.classes, options)


def images_per_batch(model: EulerLoRA, options: PredictOptions) -> int:
    """Returns the number of images whose rows the runtime runs in one pass, at least 1."""
    rows_per_image = model.network.settings.adapters * options.draw.count
    return max(1, min(MAX_BATCH_IMAGES, model.runtime.max_rows_per_pass // rows_per_image))


def _read(
    model: EulerLoRA,
    files: Iterable[Path],
    options: PredictOptions,
    on_failure: Callable[[str], None],
) -> Iterator[ReadableFile]:
    """Yields the readable files with their network input, one image in memory at a time.

    Pipes and devices are not read: that might never end.
    """
    for file in files:
        try:
            if file.exists() and not file.is_file():
                raise ImageError(f"{file}: expected a regular file")
            image = read_image(file, str(file), model.config.preprocessing.input_side)
            yield ReadableFile(file, model.prepare(image.pixels, options), image.warnings)
        except ImageError as error:
            on_failure(str(error))


def _file_prediction(
    file: ReadableFile,
    prediction: Prediction,
    index: int,
    classes: Sequence[str],
    options: PredictOptions,
) -> FilePrediction:
    fields: dict[str, Value] = {
        "file": str(file.path),
        "label": prediction.labels[index],
        "samples": int(prediction.samples[index]),
        "msp": float(prediction.msp[index]),
        "entropy": float(prediction.entropy[index]),
        "expected_entropy": float(prediction.expected_entropy[index]),
        "mutual_information": float(prediction.mutual_information[index]),
        "ood": _flag(prediction.ood, index),
        "energy": _score(prediction, "energy", index),
        "feature_distance": _score(prediction, "feature_distance", index),
        "unfamiliar": _flag(prediction.unfamiliar, index),
    }
    if (errors := prediction.standard_errors) is not None:
        fields["msp_standard_error"] = _finite(errors.msp[index])
        fields["entropy_standard_error"] = _finite(errors.entropy[index])
    if options.adaptive:
        fields["sampled"] = bool(prediction.sampled[index])
        fields["rows"] = int(prediction.rows[index])
    if options.coverage is not None:
        sets = prediction.prediction_sets
        fields[PREDICTION_SET] = None if sets is None else list(sets.labels[index])
    probabilities = dict(zip(classes, prediction.probabilities[index].tolist(), strict=True))
    return FilePrediction(fields, probabilities, file.warnings)


def _finite(value: Tensor) -> float | None:
    return float(value) if value.isfinite() else None


def _flag(flags: Tensor | None, index: int) -> bool | None:
    return None if flags is None else bool(flags[index])


def _score(prediction: Prediction, name: ScoreName, index: int) -> float | None:
    """Returns the value of an OOD score; None if the checkpoint does not have it."""
    score = prediction.ood_scores.get(name)
    return None if score is None else float(score.value[index])


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
    adaptive = ADAPTIVE_FIELDS if options.adaptive else ()
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

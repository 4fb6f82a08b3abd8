"""Predictions for image files in batches, as text lines, JSON lines or a CSV file."""

import csv
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from eulerlora.atomic_files import open_output
from eulerlora.errors import DataError, ImageError, SettingsError
from eulerlora.image_files import EXTENSIONS, image_files, read_pixels
from eulerlora.model import EulerLoRA, ModelInput, PredictOptions
from eulerlora.ood_scores import ScoreName
from eulerlora.prediction import Prediction

MAX_BATCH_IMAGES = 32  # limits the memory of a batch on a device without a limit of rows per pass
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
PREDICTION_SET = "prediction_set"
LIST_SEPARATOR = "; "
ERROR_FIELDS = ("msp_standard_error", "entropy_standard_error")


@dataclass(frozen=True)
class FilePrediction:
    """The prediction for one file.

    fields: values by output field, without the probabilities. probabilities: by class name.
    """

    fields: dict[str, str | int | float | bool | list[str] | None]
    probabilities: dict[str, float]


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


def check_output(path: Path, inputs: Iterable[Path]) -> None:
    """Raises SettingsError if writing `path` would overwrite one of the inputs."""
    if path.exists():
        for file in inputs:
            if file.exists() and file.samefile(path):
                raise SettingsError(f"{path} is an input file and cannot be the output file")


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
    predictions. Raises NonFiniteError.
    """
    warned: set[str] = set()
    readable = _read(model, files, options, on_failure)
    batch_size = images_per_batch(model, options)
    while batch := list(itertools.islice(readable, batch_size)):
        prediction = model.predict_inputs([inputs for _, inputs in batch], options)
        for warning in sorted(set(prediction.warnings) - warned):
            on_warning(warning)
        warned.update(prediction.warnings)
        for index, (file, _) in enumerate(batch):
            yield _file_prediction(file, prediction, index, model.classes, options)


def images_per_batch(model: EulerLoRA, options: PredictOptions) -> int:
    """Returns the number of images whose rows the runtime runs in one pass, at least 1."""
    rows_per_image = model.network.settings.adapters * options.draw.count
    return max(1, min(MAX_BATCH_IMAGES, model.runtime.max_rows_per_pass // rows_per_image))


def json_line(prediction: FilePrediction) -> str:
    """Returns a prediction as a JSON object without line breaks."""
    return json.dumps(prediction.fields | {"probabilities": prediction.probabilities})


def text_line(prediction: FilePrediction) -> str:
    """Returns a prediction as a line for people: file, label, MSP, entropy, flags and set.

    Bytes of a file name that are not UTF-8 are escaped.
    """
    fields = prediction.fields
    name = str(fields["file"]).encode(errors="backslashreplace").decode()
    flags = "  out of distribution" if fields["ood"] else ""
    flags += "  unfamiliar" if fields["unfamiliar"] else ""
    labels = fields.get(PREDICTION_SET)
    included = f"  {{{', '.join(labels)}}}" if isinstance(labels, list) else ""
    summary = f"{fields['label']} {fields['msp']:.3f}, H {fields['entropy']:.3f}"
    return f"{name}: {summary}{flags}{included}"


def write_csv(
    path: Path,
    predictions: Iterable[FilePrediction],
    classes: Sequence[str],
    options: PredictOptions,
) -> None:
    """Writes a CSV file with one row per prediction, which appears complete or not at all.

    A prediction set is a list separated by `; `, and empty if it is missing. options: of the
    predictions. Raises StorageError.
    """
    errors = ERROR_FIELDS if options.adaptive else ()
    sets = () if options.coverage is None else (PREDICTION_SET,)
    names = [*FIELDS, *errors, *sets, *(f"p_{name}" for name in classes)]
    with open_output(path) as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for prediction in predictions:
            probabilities = {f"p_{name}": p for name, p in prediction.probabilities.items()}
            lists = {
                name: LIST_SEPARATOR.join(value)
                for name, value in prediction.fields.items()
                if isinstance(value, list)
            }
            writer.writerow(prediction.fields | lists | probabilities)


def _read(
    model: EulerLoRA,
    files: Iterable[Path],
    options: PredictOptions,
    on_failure: Callable[[str], None],
) -> Iterator[tuple[Path, ModelInput]]:
    """Yields the readable files with their network input, one image in memory at a time."""
    for file in files:
        try:
            yield file, model.prepare(read_pixels(file, str(file)), options)
        except ImageError as error:
            on_failure(str(error))


def _file_prediction(
    file: Path, prediction: Prediction, index: int, classes: Sequence[str], options: PredictOptions
) -> FilePrediction:
    fields: dict[str, str | int | float | bool | list[str] | None] = {
        "file": str(file),
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
        fields["msp_standard_error"] = float(errors.msp[index])
        fields["entropy_standard_error"] = float(errors.entropy[index])
    if options.coverage is not None:
        sets = prediction.prediction_sets
        fields[PREDICTION_SET] = None if sets is None else list(sets.labels[index])
    probabilities = dict(zip(classes, prediction.probabilities[index].tolist(), strict=True))
    return FilePrediction(fields, probabilities)


def _flag(flags: Tensor | None, index: int) -> bool | None:
    return None if flags is None else bool(flags[index])


def _score(prediction: Prediction, name: ScoreName, index: int) -> float | None:
    """Returns the value of an OOD score; None if the checkpoint does not have it."""
    score = prediction.ood_scores.get(name)
    return None if score is None else float(score.value[index])

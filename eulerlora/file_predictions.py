"""Predictions for image files in batches."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from eulerlora.errors import DataError, ImageError
from eulerlora.image_files import EXTENSIONS, image_files, read_image
from eulerlora.model import EulerLoRA, ModelInput, PredictOptions
from eulerlora.ood_scores import ScoreName
from eulerlora.prediction import Prediction
from eulerlora.preprocess import Conversion, ImageWarning

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
    if options.det_first:
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

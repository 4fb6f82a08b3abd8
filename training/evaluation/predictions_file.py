"""The predictions of an evaluation as a table with one row for each mode and image.

Columns:

    set, group          the test part, an out-of-distribution set or a corruption, and its group
    name, cluster       the image; the lesion or other unit that it shares with other images
    label               the true class; empty for none
    mode, samples, sampler
    p_CLASS             mean probability of each class
    entropy, expected_entropy, mutual_information
    msp, energy, feature_distance
    flagged_SCORE       1 if the score is beyond the checkpoint's threshold, else 0
    test_ATTRIBUTE      groups of a test image, such as test_sex

A cell is empty if the value does not exist. Numbers have all digits.
"""

import csv
import gzip
from collections.abc import Iterator, Sequence
from io import BytesIO, TextIOWrapper

from eulerlora.scores.ood_scores import SCORES
from training.evaluation.evaluate import Evaluation
from training.evaluation.evaluated_sets import EvaluatedSet, SetPredictions
from training.evaluation.report_schema import ModeReport

PREDICTIONS = "predictions.csv.gz"
SUMMARY = ("entropy", "expected_entropy", "mutual_information")


def predictions_csv(evaluation: Evaluation) -> bytes:
    """Returns the table as compressed CSV; equal predictions give equal bytes."""
    attributes = list(
        dict.fromkeys(name for image in evaluation.sets.test.images for name in image.groups)
    )
    content = BytesIO()
    # Without the time of compression, which the format would store.
    with (
        gzip.GzipFile("", "wb", fileobj=content, mtime=0) as compressed,
        TextIOWrapper(compressed, "utf-8", "surrogateescape", newline="") as text,
    ):
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_columns(evaluation.classes, attributes))
        for images in evaluation.sets:
            for mode, predictions in zip(evaluation.report.modes, images.predictions, strict=True):
                writer.writerows(_rows(images, mode, predictions, evaluation.classes, attributes))
    return content.getvalue()


def _columns(classes: Sequence[str], attributes: Sequence[str]) -> list[str]:
    return [
        *("set", "group", "name", "cluster", "label", "mode", "samples", "sampler"),
        *(f"p_{name}" for name in classes),
        *SUMMARY,
        *SCORES,
        *(f"flagged_{name}" for name in SCORES),
        *(f"test_{name}" for name in attributes),
    ]


def _rows(
    images: EvaluatedSet,
    mode: ModeReport,
    predictions: SetPredictions,
    classes: Sequence[str],
    attributes: Sequence[str],
) -> Iterator[list[object]]:
    columns = list(_value_columns(predictions))
    for index, image in enumerate(images.images):
        yield [
            *(images.name, images.group, image.name, image.cluster or ""),
            classes[image.label] if image.label >= 0 else "",
            *(mode.mode, mode.samples, mode.sampler or ""),
            *(column[index] for column in columns),
            *(image.groups.get(name, "") for name in attributes),
        ]


def _value_columns(predictions: SetPredictions) -> Iterator[Sequence[object]]:
    """Yields the n values of every column from `p_CLASS` to `flagged_SCORE`."""
    uncertainty, scores = predictions.uncertainty, predictions.scores
    empty = [""] * len(uncertainty.msp)
    yield from uncertainty.probabilities.T.tolist()
    for name in SUMMARY:
        yield getattr(uncertainty, name).tolist()
    for score in SCORES:
        yield scores[score].value.tolist() if score in scores else empty
    for score in SCORES:
        flags = predictions.flags.get(score)
        yield empty if flags is None else flags.astype(int).tolist()

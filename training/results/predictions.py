"""The stored predictions of runs, and their metrics in resamples of the images.

Equal images give equal resamples in all runs, so that metrics of two runs can be paired.
"""

import csv
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from eulerlora.errors import DataError
from eulerlora.scores.ood_scores import ScoreName
from eulerlora.settings import Mode
from training.evaluation.predictions_file import PREDICTIONS
from training.evaluation.report_schema import TEST
from training.metrics.classification import auroc, classification_metrics
from training.metrics.intervals import Floats, Ints, Weights, cluster_indices, resampled

Resampled = Mapping[str, Floats]
"""Metrics by name, (1 + resamples,): first those of all images, then those of the resamples."""
GROUPS = ("far", "near")
"""Groups of sets that a score should reject; `shifted` images belong to classes."""


@dataclass(frozen=True)
class RunPredictions:
    """Predictions of a run for the test part in one mode.

    names, clusters: of n images. labels: (n,) class indices. probabilities: (n, classes).
    """

    names: tuple[str, ...]
    clusters: tuple[str, ...]
    labels: Ints
    probabilities: Floats


@dataclass(frozen=True)
class SetScores:
    """OOD scores of a run for a set in one mode.

    names, clusters: of n images. scores: (n,), high in distribution.
    """

    group: str
    names: tuple[str, ...]
    clusters: tuple[str, ...]
    scores: Mapping[ScoreName, Floats]


def ood_metric(group: str, score: ScoreName) -> str:
    """Returns the name of the mean AUROC of a score over the sets of a group."""
    return f"{group}_{score}"


def read_predictions(folder: Path, mode: Mode) -> RunPredictions:
    """Returns the predictions for the test part from a run's report folder.

    Raises DataError if the file has none in this mode.
    """
    rows = [row for row in _rows(folder, mode) if row["set"] == TEST]
    columns = [name for name in rows[0] if name.startswith("p_")]
    classes = [name.removeprefix("p_") for name in columns]
    return RunPredictions(
        *_images(rows),
        labels=np.array([classes.index(row["label"]) for row in rows]),
        probabilities=np.array([[float(row[name]) for name in columns] for row in rows]),
    )


def read_scores(folder: Path, mode: Mode, scores: Sequence[ScoreName]) -> dict[str, SetScores]:
    """Returns the scores of the test part and of the sets of `GROUPS`, by name of the set.

    Raises DataError if the file lacks one of the scores.
    """
    by_set: dict[str, list[dict[str, str]]] = {}
    for row in _rows(folder, mode):
        if row["set"] == TEST or row["group"] in GROUPS:
            by_set.setdefault(row["set"], []).append(row)
    return {
        name: SetScores(
            rows[0]["group"], *_images(rows), {s: _familiarity(folder, rows, s) for s in scores}
        )
        for name, rows in by_set.items()
    }


def resampled_metrics(predictions: RunPredictions) -> Resampled:
    """Returns the metrics of a run; equal test images give equal resamples of their lesions."""
    smallest = np.finfo(np.float64).tiny
    log_probabilities = torch.from_numpy(np.log(predictions.probabilities.clip(min=smallest)))
    metrics = partial(classification_metrics, log_probabilities[:, None], predictions.labels)
    return resampled(metrics, cluster_indices(predictions.clusters))


def resampled_ood_metrics(sets: Mapping[str, SetScores]) -> Resampled:
    """Returns the mean AUROC of every group and score, by `ood_metric`.

    sets: of `read_scores`. The test part, which is positive, and all sets are resampled together.
    """
    names = list(sets)
    ends = np.cumsum([len(sets[name].names) for name in names])[:-1]

    def metrics(weights: Weights) -> dict[str, Floats]:
        parts = dict(zip(names, np.split(weights, ends, axis=1), strict=True))
        values: dict[str, list[Floats]] = {}
        for name, outside in sets.items():
            if name == TEST:
                continue
            positive = np.arange(len(sets[TEST].names) + len(outside.names)) < len(sets[TEST].names)
            drawn = np.concatenate([parts[TEST], parts[name]], axis=1)
            for score, of_set in outside.scores.items():
                both = np.concatenate([sets[TEST].scores[score], of_set])
                of_group = values.setdefault(ood_metric(outside.group, score), [])
                of_group.append(auroc(both, positive, drawn))
        return {name: np.mean(of_sets, axis=0) for name, of_sets in values.items()}

    return resampled(metrics, *(cluster_indices(sets[name].clusters) for name in names))


def _rows(folder: Path, mode: Mode) -> list[dict[str, str]]:
    path = folder / PREDICTIONS
    with gzip.open(path, "rt", encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["mode"] == mode]
    if not any(row["set"] == TEST for row in rows):
        raise DataError(f"{path}: expected predictions for the test part in mode {mode}, got none")
    return rows


def _images(rows: Sequence[Mapping[str, str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names and the clusters of images."""
    names = tuple(row["name"] for row in rows)
    return names, tuple(row["cluster"] or row["name"] for row in rows)


def _familiarity(folder: Path, rows: Sequence[Mapping[str, str]], score: ScoreName) -> Floats:
    """Returns (n,) the score with the sign that makes it high in distribution."""
    values = [row[score] for row in rows]
    if "" in values:
        raise DataError(
            f"{folder / PREDICTIONS}: expected {score} of all images of {rows[0]['set']}, got none"
        )
    numbers = np.array([float(value) for value in values])
    return numbers if score == "msp" else -numbers

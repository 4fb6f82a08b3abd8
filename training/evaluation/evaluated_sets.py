"""The sets of an evaluation: images, predictions, and the metrics of their OOD scores."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from eulerlora.scores.ood_scores import (
    FeatureDistance,
    FlaggedScore,
    ScoredByName,
    ScoreName,
    ood_scores,
)
from eulerlora.scores.uncertainty import Uncertainty, summarise
from eulerlora_client.contract.answers import Threshold
from training.data.images import LabelledImage
from training.evaluation.inference import ModelOutputs
from training.evaluation.intervals import (
    Bools,
    Floats,
    Ints,
    Proportion,
    Weights,
    bootstrap,
    cluster_indices,
    proportion,
)
from training.evaluation.metrics import ood_metrics
from training.evaluation.report_schema import ScoreMetrics


@dataclass(frozen=True)
class SetPredictions:
    """Predictions for the n images of a set in one mode.

    log_probabilities: (n, trajectories, classes). uncertainty: their summary. scores: the OOD
    scores by name; without feature_distance if the checkpoint has no feature statistics.
    """

    log_probabilities: Tensor
    uncertainty: Uncertainty
    scores: ScoredByName

    @property
    def labels(self) -> Ints:
        """(n,) class index of the highest probability."""
        labels: Ints = self.uncertainty.probabilities.argmax(dim=-1).numpy()
        return labels

    @property
    def flags(self) -> dict[ScoreName, Bools]:
        """(n,) whether an image is flagged, by name of the score with a threshold."""
        return {
            name: score.flagged.numpy()
            for name, score in self.scores.items()
            if score.flagged is not None
        }

    def selected(self, images: Ints) -> "SetPredictions":
        """Returns the predictions for some of the images. images: their indices."""
        summary = {name: values[images] for name, values in vars(self.uncertainty).items()}
        return SetPredictions(
            log_probabilities=self.log_probabilities[images],
            uncertainty=Uncertainty(**summary),
            scores={
                name: FlaggedScore(
                    score.value[images],
                    score.threshold,
                    None if score.flagged is None else score.flagged[images],
                )
                for name, score in self.scores.items()
            },
        )


@dataclass(frozen=True)
class EvaluatedSet:
    """Images and their predictions.

    group: `test`, `corrupted` or the group of an out-of-distribution set. of_test: True if the
    images are made from those of the test part. predictions: for each of the report's modes.
    """

    name: str
    group: str
    images: Sequence[LabelledImage]
    of_test: bool
    predictions: Sequence[SetPredictions]

    @property
    def labels(self) -> Ints:
        """(n,) class index of each image; OUTSIDE for none."""
        return np.array([image.label for image in self.images])

    @property
    def clusters(self) -> list[str]:
        """The names of the n images' clusters; an image without a cluster is one by itself."""
        return [image.cluster or image.name for image in self.images]


@dataclass(frozen=True)
class EvaluatedSets:
    """The test part, and the other sets by name. chosen: indices of the corrupted test images."""

    test: EvaluatedSet
    ood: Mapping[str, EvaluatedSet]
    corrupted: Mapping[str, EvaluatedSet]
    chosen: Ints

    def __iter__(self) -> Iterator[EvaluatedSet]:
        yield from (self.test, *self.ood.values(), *self.corrupted.values())


@dataclass(frozen=True)
class ResamplingUnits:
    """The clusters of two sets.

    outside: (m,) cluster indices of the second set. resampled: the arrays for `bootstrap`: one of
    both sets if they show the same clusters, else one for each, resampled independently.
    """

    outside: Ints
    resampled: tuple[Ints, ...]

    @classmethod
    def of(cls, inside: Sequence[str], outside: Sequence[str], shared: bool) -> "ResamplingUnits":
        """Returns the units from the cluster names of both sets' images.

        shared: True if an equal name means the same cluster; its images in both sets are then
        resampled together.
        """
        indices = cluster_indices(outside)
        if shared:
            return cls(indices, (cluster_indices([*inside, *outside]),))
        return cls(indices, (cluster_indices(inside), indices))


def set_predictions(
    outputs: ModelOutputs, distance: FeatureDistance | None, thresholds: Threshold | None
) -> SetPredictions:
    """Returns the predictions from the outputs of a model.

    distance: None without feature statistics. thresholds: None if the options of the outputs were
    not calibrated.
    """
    trajectories = outputs.log_probabilities.flatten(1, 2)
    uncertainty = summarise(trajectories.exp())
    scores = ood_scores(outputs.scores(distance), thresholds)
    return SetPredictions(trajectories, uncertainty, scores)


def ensemble_predictions(
    outputs: Sequence[ModelOutputs], distances: Sequence[FeatureDistance | None]
) -> SetPredictions:
    """Returns the predictions of an ensemble of models from the outputs of each of them.

    The trajectories are those of all models together. The MSP is that of their mean probability;
    the other scores are means over the models, each with its own feature statistics. An ensemble
    has no thresholds.
    """
    trajectories = torch.cat([each.log_probabilities.flatten(1, 2) for each in outputs], dim=1)
    uncertainty = summarise(trajectories.exp())
    members = [each.scores(distance) for each, distance in zip(outputs, distances, strict=True)]
    values = {
        name: torch.stack([scores[name] for scores in members]).mean(dim=0) for name in members[0]
    }
    return SetPredictions(
        trajectories, uncertainty, ood_scores(values | {"msp": uncertainty.msp}, None)
    )


def flagged_shares(
    predictions: SetPredictions, clusters: Ints
) -> dict[ScoreName, Proportion | None]:
    """Returns the share of flagged images by score with a threshold. clusters: (n,)."""
    return {score: proportion(flags, clusters) for score, flags in predictions.flags.items()}


def score_metrics(
    inside: SetPredictions, outside: SetPredictions, units: ResamplingUnits
) -> dict[ScoreName, ScoreMetrics]:
    """Returns the metrics of each score; the images of `inside` are positive."""
    flagged = flagged_shares(outside, units.outside)

    def metrics(score: ScoreName, weights: Weights) -> dict[str, Floats]:
        return ood_metrics(familiarity(inside, score), familiarity(outside, score), weights)

    return {
        score: ScoreMetrics(
            bootstrap(partial(metrics, score), *units.resampled), flagged.get(score)
        )
        for score in outside.scores
    }


def accuracy(labels: Ints, predictions: SetPredictions, clusters: Ints) -> Proportion | None:
    """Returns the accuracy, or None if not all images have a class. labels, clusters: (n,)."""
    if (labels < 0).any():
        return None
    return proportion(predictions.labels == labels, clusters)


def familiarity(predictions: SetPredictions, score: ScoreName) -> Floats:
    """Returns (n,) the score with the sign that makes it high in distribution."""
    values: Floats = predictions.scores[score].value.numpy()
    return values if score == "msp" else -values

"""The sets of an evaluation: images, predictions, and the metrics of their OOD scores."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from eulerlora.scores.ood_scores import (
    FeatureDistance,
    ScoredByName,
    ScoreName,
    ood_scores,
)
from eulerlora.scores.uncertainty import Uncertainty, Variance, summarise, variance_of
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

    log_probabilities: (n, trajectories, classes). uncertainty, variance: of them. scores: the OOD
    scores by name; without feature_distance if the checkpoint has no feature statistics.
    """

    log_probabilities: Tensor
    uncertainty: Uncertainty
    variance: Variance
    scores: ScoredByName

    @classmethod
    def of(
        cls, outputs: ModelOutputs, distance: FeatureDistance | None, thresholds: Threshold | None
    ) -> "SetPredictions":
        """Returns the predictions from the outputs of a model.

        distance: None without feature statistics. thresholds: None if the options of the outputs
        were not calibrated.
        """
        scores = ood_scores(outputs.scores(distance), thresholds)
        return cls._of(outputs.log_probabilities, outputs.views, scores)

    @classmethod
    def of_ensemble(
        cls, outputs: Sequence[ModelOutputs], distances: Sequence[FeatureDistance | None]
    ) -> "SetPredictions":
        """Returns the predictions of an ensemble of models from the outputs of each of them.

        The trajectories are those of all models together. The MSP is that of their mean
        probability; the other scores are means over the models, each with its own feature
        statistics. An ensemble has no thresholds.
        """
        trajectories = torch.cat([m.log_probabilities for m in outputs], dim=1)
        views = torch.cat([m.views for m in outputs], dim=1)
        members = [m.scores(distance) for m, distance in zip(outputs, distances, strict=True)]
        values = {
            name: torch.stack([scores[name] for scores in members]).mean(dim=0)
            for name in members[0]
        }
        msp = summarise(trajectories.exp().flatten(1, 2)).msp
        return cls._of(trajectories, views, ood_scores(values | {"msp": msp}, None))

    @classmethod
    def _of(
        cls, log_probabilities: Tensor, views: Tensor, scores: ScoredByName
    ) -> "SetPredictions":
        """log_probabilities: (n, adapters, samples, classes). views: (n, adapters, samples)."""
        probabilities = log_probabilities.exp()
        return cls(
            log_probabilities.flatten(1, 2),
            summarise(probabilities.flatten(1, 2)),
            variance_of(probabilities, views),
            scores,
        )

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

    def familiarity(self, score: ScoreName) -> Floats:
        """Returns (n,) the score with the sign that makes it high in distribution."""
        values: Floats = self.scores[score].value.numpy()
        return values if score == "msp" else -values


@dataclass(frozen=True)
class EvaluatedSet:
    """n images and their predictions.

    group: `test` or the group of an out-of-distribution set. of_test: True if the images are made
    from those of the test part. predictions: for each of the report's modes.
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
    def cluster_names(self) -> list[str]:
        """The names of the n images' clusters; an image without a cluster is one by itself."""
        return [image.cluster or image.name for image in self.images]

    @property
    def clusters(self) -> Ints:
        """(n,) cluster index of each image."""
        return cluster_indices(self.cluster_names)


@dataclass(frozen=True)
class EvaluatedSets:
    """The test part, and the out-of-distribution sets by name."""

    test: EvaluatedSet
    ood: Mapping[str, EvaluatedSet]

    def __iter__(self) -> Iterator[EvaluatedSet]:
        yield from (self.test, *self.ood.values())


def flagged_shares(
    predictions: SetPredictions, clusters: Ints
) -> dict[ScoreName, Proportion | None]:
    """Returns the share of flagged images by score with a threshold. clusters: (n,)."""
    return {score: proportion(flags, clusters) for score, flags in predictions.flags.items()}


def score_metrics(
    test: EvaluatedSet, outside: EvaluatedSet, mode: int
) -> dict[ScoreName, ScoreMetrics]:
    """Returns the metrics of each score; the images of the test part are positive.

    Images of both sets that show the same lesion are resampled together if `outside` is made from
    the test part; otherwise the sets are resampled independently. mode: index of the mode.
    """
    inside, others = test.predictions[mode], outside.predictions[mode]
    units = [test.clusters, outside.clusters]
    if outside.of_test:
        units = [cluster_indices([*test.cluster_names, *outside.cluster_names])]
    flagged = flagged_shares(others, outside.clusters)

    def metrics(score: ScoreName, weights: Weights) -> dict[str, Floats]:
        return ood_metrics(inside.familiarity(score), others.familiarity(score), weights)

    return {
        score: ScoreMetrics(bootstrap(partial(metrics, score), *units), flagged.get(score))
        for score in others.scores
    }

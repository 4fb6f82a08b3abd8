"""Out-of-distribution scores of evaluated images: flags by threshold, and metrics by set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from eulerlora.config import Threshold
from eulerlora.feature_distance import FeatureDistance
from eulerlora.ood_scores import OodScore, OodScores, ScoreName, ood_scores
from eulerlora.uncertainty import Uncertainty, summarise
from training.evaluation.inference import ModelOutputs
from training.evaluation.intervals import (
    Bools,
    Estimate,
    Estimates,
    Floats,
    Ints,
    Weights,
    bootstrap,
    cluster_indices,
)
from training.evaluation.metrics import ood_metrics, weighted_mean


@dataclass(frozen=True)
class SetPredictions:
    """Predictions for the n images of a set in one mode.

    log_probabilities: (n, trajectories, classes). uncertainty: their summary. scores: the OOD
    scores by name; without feature_distance if the checkpoint has no feature statistics.
    """

    log_probabilities: Tensor
    uncertainty: Uncertainty
    scores: OodScores

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
                name: OodScore(
                    score.value[images],
                    score.threshold,
                    None if score.flagged is None else score.flagged[images],
                )
                for name, score in self.scores.items()
            },
        )


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


def flagged_shares(flagged: Mapping[ScoreName, Bools], clusters: Ints) -> Estimates:
    """Returns the share of flagged images by score. flagged: (n,) by score. clusters: (n,)."""

    def shares(weights: Weights) -> dict[str, Floats]:
        return {name: weighted_mean(values, weights) for name, values in flagged.items()}

    return bootstrap(shares, clusters) if flagged else {}


def ood_estimates(
    inside: SetPredictions, outside: SetPredictions, units: Sequence[Ints]
) -> dict[ScoreName, Estimates]:
    """Returns AUROC, AUPRC and FPR at 95% TPR of each score, and the share of `outside` flagged.

    The n images of `inside` are positive. units: as returned by `resampling_units`.
    """
    flagged = outside.flags

    def metrics(score: ScoreName, weights: Weights) -> dict[str, Floats]:
        positives, negatives = familiarity(inside, score), familiarity(outside, score)
        values = ood_metrics(positives, negatives, weights)
        if score in flagged:
            values["flagged"] = weighted_mean(flagged[score], weights[:, len(positives) :])
        return values

    return {score: bootstrap(partial(metrics, score), *units) for score in outside.scores}


def familiarity(predictions: SetPredictions, score: ScoreName) -> Floats:
    """Returns (n,) the score with the sign that makes it high in distribution."""
    values: Floats = predictions.scores[score].value.numpy()
    return values if score == "msp" else -values


def resampling_units(
    inside: Sequence[str], outside: Sequence[str], shared: bool
) -> tuple[Ints, ...]:
    """Returns the clusters to resample, from the cluster names of both sets' images.

    shared: True if both sets show the same clusters; then images of a cluster in one set and in
    the other are resampled together. Otherwise the sets are resampled independently.
    """
    if shared:
        return (cluster_indices([*inside, *outside]),)
    return cluster_indices(inside), cluster_indices(outside)


def accuracy(labels: Ints, predictions: SetPredictions, clusters: Ints) -> Estimate | None:
    """Returns the accuracy, or None if not all images have a class. labels, clusters: (n,)."""
    if (labels < 0).any():
        return None
    correct = predictions.labels == labels
    return bootstrap(lambda weights: {"accuracy": weighted_mean(correct, weights)}, clusters)[
        "accuracy"
    ]

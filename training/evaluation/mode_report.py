"""The results of one mode of prediction, computed from predictions and labels.

`mode_report` takes the predictions of the test part and of other sets, whatever made them, and
returns all figures of a report on that mode: metrics with 95% intervals over the clusters of
images, results by class and by group, out-of-distribution scores, and coverage of prediction sets.
It reads no image and runs no network; equal arguments give equal figures.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from eulerlora.answer import Predictions
from eulerlora.scores.ood_scores import ScoreName
from eulerlora.scores.prediction_sets import PredictionSetCalibration
from eulerlora_contract.sampling import Options
from training.data.images import LabelledImage
from training.evaluation.intervals import (
    Estimate,
    Estimates,
    Floats,
    Ints,
    Proportion,
    Weights,
    bootstrap,
    cluster_indices,
    proportion,
    share_estimates,
    unit_weights,
)
from training.evaluation.metrics import (
    auroc,
    classification_metrics,
    classwise_calibration_error,
    error_ranking,
    macro_auroc,
    ood_metrics,
    risk_coverage,
    selective_metrics,
    smooth_calibration_error,
    weighted_mean,
)
from training.evaluation.prediction_sets import set_coverages
from training.evaluation.report_schema import (
    FLAG_METRICS,
    ClassMetrics,
    GroupMetrics,
    ModeReport,
    OodMetrics,
    ScoreMetrics,
)

__all__ = ["EvaluatedSet", "familiarity", "mode_report"]


@dataclass(frozen=True)
class EvaluatedSet:
    """n images and their predictions.

    Attributes:
        group: `test` or the group of an out-of-distribution set.
        of_test: True if the images are made from those of the test part.
        predictions: For each of the report's modes.
    """

    name: str
    group: str
    images: Sequence[LabelledImage]
    of_test: bool
    predictions: Sequence[Predictions]

    @property
    def labels(self) -> Ints:
        """(n,) class index of each image; OUTSIDE for none."""
        return np.array([image.label for image in self.images])

    @property
    def cluster_names(self) -> list[str]:
        """The names of the n images' clusters; an image without a cluster is one by itself."""
        return [image.cluster_name for image in self.images]

    @property
    def clusters(self) -> Ints:
        """(n,) cluster index of each image."""
        return cluster_indices(self.cluster_names)


def mode_report(
    options: Options,
    index: int,
    test: EvaluatedSet,
    sets: Mapping[str, EvaluatedSet],
    classes: Sequence[str],
    target: Sequence[str] = (),
    calibrations: Iterable[PredictionSetCalibration] = (),
) -> ModeReport:
    """The results of one mode of prediction.

    Args:
        options: Of the mode, with a number of samples.
        index: Of the mode in the predictions of the sets.
        test: The test part.
        sets: Out-of-distribution sets by name.
        classes: The names of all classes, in the order of the probabilities.
        target: Those of the target.
        calibrations: The prediction sets whose coverage is measured.
    """
    inside, first = test.predictions[index], test.predictions[0]
    labels, clusters = test.labels, test.clusters
    return ModeReport(
        options=options,
        trajectories=inside.log_probabilities.shape[1],
        metrics=_metric_estimates(inside, labels, clusters),
        difference=_difference_estimates(inside, first, labels, clusters) if index else {},
        error_ranking=error_ranking(
            inside, inside.variance, inside.predicted.numpy() != labels, clusters
        ),
        classes=_class_metrics(inside.probabilities.numpy(), labels, clusters, classes, target),
        thresholds={
            name: score.threshold
            for name, score in inside.ood_scores.items()
            if score.threshold is not None
        },
        flagged=_flagged_shares(inside, clusters),
        ood={name: _ood_metrics(test, outside, index) for name, outside in sets.items()},
        groups=_group_metrics(test, index, [classes.index(name) for name in target]),
        prediction_sets=set_coverages(inside.probabilities, test.images, classes, calibrations),
    )


def _ood_metrics(test: EvaluatedSet, outside: EvaluatedSet, index: int) -> OodMetrics:
    labels, predicted = outside.labels, outside.predictions[index].predicted.numpy()
    labelled = bool((labels >= 0).all())
    return OodMetrics(
        scores=_score_metrics(test, outside, index),
        accuracy=proportion(predicted == labels, outside.clusters) if labelled else None,
    )


def _flagged_shares(predictions: Predictions, clusters: Ints) -> dict[ScoreName, Proportion | None]:
    """The share of flagged images by score with a threshold."""
    return {
        score: proportion(flags.numpy(), clusters) for score, flags in predictions.flags.items()
    }


def familiarity(score: ScoreName, values: Floats) -> Floats:
    """(n,) values of a score with the sign that makes them high in distribution."""
    return values if score == "msp" else -values


def _score_metrics(
    test: EvaluatedSet, outside: EvaluatedSet, mode: int
) -> dict[ScoreName, ScoreMetrics]:
    """The metrics of each score; the images of the test part are positive.

    Images of both sets that show the same lesion are resampled together if `outside` is made from
    the test part; otherwise the sets are resampled independently.

    Args:
        test: The test part.
        outside: An out-of-distribution set.
        mode: Index of the mode in the report.
    """
    inside, others = test.predictions[mode], outside.predictions[mode]
    units = [test.clusters, outside.clusters]
    if outside.of_test:
        units = [cluster_indices([*test.cluster_names, *outside.cluster_names])]
    flagged = _flagged_shares(others, outside.clusters)

    def metrics(score: ScoreName, weights: Weights) -> dict[str, Floats]:
        of_test, of_others = (
            familiarity(score, of_set.ood_scores[score].value.numpy())
            for of_set in (inside, others)
        )
        return ood_metrics(of_test, of_others, weights)

    return {
        score: ScoreMetrics(bootstrap(partial(metrics, score), *units), flagged.get(score))
        for score in others.ood_scores
    }


def _metric_estimates(inside: Predictions, labels: Ints, clusters: Ints) -> Estimates:
    """The paper's metrics, further calibration errors, AURC and AUGRC."""
    wrong, msp = inside.predicted.numpy() != labels, inside.msp.numpy()
    probabilities: Floats = inside.probabilities.numpy()

    def metrics(weights: Weights) -> dict[str, Floats]:
        scores = classification_metrics(inside.log_probabilities, labels, weights)
        scores["classwise_ece"] = classwise_calibration_error(probabilities, labels, weights)
        scores["smooth_ece"] = smooth_calibration_error(probabilities, labels, weights)
        return scores | selective_metrics(risk_coverage(msp, wrong, weights))

    compared = dict.fromkeys(("aurc", "augrc"), wrong)
    estimates = bootstrap(metrics, clusters, compared=compared)
    return estimates | share_estimates({"accuracy": ~wrong}, clusters)


def _difference_estimates(
    inside: Predictions, reference: Predictions, labels: Ints, clusters: Ints
) -> Estimates:
    """The classification metrics less those of a reference for the same images.

    Both are resampled together.
    """

    def metrics(weights: Weights) -> dict[str, Floats]:
        ours = classification_metrics(inside.log_probabilities, labels, weights)
        others = classification_metrics(reference.log_probabilities, labels, weights)
        return {name: ours[name] - others[name] for name in ours}

    return bootstrap(metrics, clusters)


_MAX_RANKED = 20
"""Classes up to which their AUROC and AUPRC have intervals, which take minutes for hundreds."""


def _class_metrics(
    probabilities: Floats,
    labels: Ints,
    clusters: Ints,
    classes: Sequence[str],
    target: Sequence[str],
) -> dict[str, ClassMetrics]:
    """The results by class, the target first.

    Args:
        probabilities: (n, classes)
        labels: (n,) class indices.
        clusters: (n,) cluster index of each image.
        classes: The names of all classes.
        target: Those of the target.
    """
    predicted = probabilities.argmax(axis=1)

    def ranking(index: int, weights: Weights) -> dict[str, Floats]:
        scores, is_true = probabilities[:, index], labels == index
        order = np.argsort(~is_true, kind="stable")
        metrics = ood_metrics(scores[is_true], scores[~is_true], weights[:, order])
        return {name: metrics[name] for name in ("auroc", "auprc")}

    def estimates(index: int) -> Estimates:
        metrics = partial(ranking, index)
        if len(classes) <= _MAX_RANKED:
            compared = dict.fromkeys(("auroc", "auprc"), labels == index)
            return bootstrap(metrics, clusters, compared=compared)
        return {
            name: Estimate(value.item())
            for name, value in metrics(unit_weights(len(labels))).items()
        }

    by_class = {}
    for index, name in enumerate(classes):
        is_predicted, is_true = predicted == index, labels == index
        both = 0 < is_true.sum() < len(labels)
        by_class[name] = ClassMetrics(
            sensitivity=proportion(is_predicted[is_true], clusters[is_true]),
            specificity=proportion(~is_predicted[~is_true], clusters[~is_true]),
            predictive_value=proportion(is_true[is_predicted], clusters[is_predicted]),
            ranking=estimates(index) if both else {},
        )
    return {name: by_class[name] for name in target} | by_class


def _group_metrics(
    test: EvaluatedSet, index: int, target: Sequence[int]
) -> dict[str, dict[str, GroupMetrics]]:
    """The results by attribute, then by value in alphabetical order.

    An attribute with a single value is left out.

    Args:
        test: The test part.
        index: Of the mode in the report.
        target: Indices of the target classes.
    """
    attributes = dict.fromkeys(name for image in test.images for name in image.attributes)
    by_attribute = {}
    for attribute in attributes:
        values = np.array([image.attributes.get(attribute, "") for image in test.images])
        if len(groups := np.unique(values).tolist()) > 1:
            by_attribute[attribute] = {
                value: _group(test, index, target, np.flatnonzero(values == value))
                for value in groups
            }
    return by_attribute


def _group(test: EvaluatedSet, index: int, target: Sequence[int], members: Ints) -> GroupMetrics:
    """The results of the images at the indices `members`."""
    predictions, labels = test.predictions[index], test.labels[members]
    clusters = np.unique(test.clusters[members], return_inverse=True)[1]
    probabilities, msp = (
        predictions.probabilities.numpy()[members],
        predictions.msp.numpy()[members],
    )
    predicted = predictions.predicted.numpy()[members]
    correct, positive = predicted == labels, np.isin(labels, target)

    def metrics(weights: Weights) -> dict[str, Floats]:
        return {
            "overconfidence": weighted_mean(msp - correct, weights),
            "auroc": auroc(probabilities[:, target].sum(axis=1), positive, weights)
            if target
            else macro_auroc(probabilities, labels, weights),
        }

    flags = {
        name: predictions.flags[score].numpy()[members]
        for score, name in FLAG_METRICS.items()
        if score in predictions.flags
    }
    shares = {"accuracy": correct} | flags
    return GroupMetrics(
        images=len(labels),
        clusters=int(clusters.max()) + 1,
        target=int(positive.sum()),
        metrics=bootstrap(metrics, clusters, compared={"auroc": positive} if target else None)
        | share_estimates(shares, clusters),
        sensitivity=proportion(np.isin(predicted[positive], target), clusters[positive]),
        specificity=proportion(~np.isin(predicted[~positive], target), clusters[~positive])
        if target
        else None,
    )

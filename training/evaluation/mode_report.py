"""Results of a model in one mode, from its predictions, with confidence intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from eulerlora.scores.ood_scores import ScoreName
from eulerlora.scores.uncertainty import Uncertainty
from training.data.images import ImageParts
from training.evaluation.evaluated_sets import SetPredictions
from training.evaluation.report_schema import (
    CLEAN,
    FLAG_METRICS,
    MELANOMA,
    TEST,
    ClassMetrics,
    GroupMetrics,
)
from training.metrics.classification import (
    auroc,
    classification_metrics,
    macro_auroc,
    weighted_mean,
)
from training.metrics.intervals import (
    Bools,
    Estimates,
    Floats,
    Ints,
    Weights,
    bootstrap,
    cluster_indices,
    proportion,
)
from training.metrics.selective_prediction import risk_coverage, selective_metrics


@dataclass(frozen=True)
class GroundTruth:
    """Labels and attributes of n test images.

    labels: (n,). clusters: (n,) indices. groups: n values for each attribute; attributes with
    a single value are left out. target: indices of the target classes.
    """

    labels: Ints
    clusters: Ints
    groups: Mapping[str, Sequence[str]]
    target: Sequence[int]


def ground_truth(images: ImageParts) -> GroundTruth:
    """Returns labels and attributes of the test part of a data set."""
    test = images.parts[TEST]
    attributes = dict.fromkeys(attribute for image in test for attribute in image.groups)
    groups = {
        attribute: [image.groups.get(attribute, "") for image in test] for attribute in attributes
    }
    classes = [label.name for label in images.classes]
    return GroundTruth(
        labels=np.array([image.label for image in test]),
        clusters=cluster_indices([image.cluster or image.name for image in test]),
        groups={attribute: values for attribute, values in groups.items() if len(set(values)) > 1},
        target=[classes.index(name) for name in images.target],
    )


def metric_estimates(
    log_probabilities: Tensor, uncertainty: Uncertainty, truth: GroundTruth
) -> Estimates:
    """Returns the paper's metrics, AURC and AUGRC.

    log_probabilities: (n, trajectories, classes).
    """
    wrong = _predicted(uncertainty) != truth.labels

    def metrics(weights: Weights) -> dict[str, Floats]:
        curve = risk_coverage(uncertainty.msp.numpy(), wrong, weights)
        scores = classification_metrics(log_probabilities, truth.labels, weights)
        return scores | selective_metrics(curve)

    return bootstrap(metrics, truth.clusters)


def difference_estimates(
    log_probabilities: Tensor, reference: Tensor, truth: GroundTruth
) -> Estimates:
    """Returns the classification metrics less those of a reference for the same images.

    log_probabilities, reference: (n, trajectories, classes). Both are resampled together.
    """

    def metrics(weights: Weights) -> dict[str, Floats]:
        ours = classification_metrics(log_probabilities, truth.labels, weights)
        others = classification_metrics(reference, truth.labels, weights)
        return {name: ours[name] - others[name] for name in ours}

    return bootstrap(metrics, truth.clusters)


def class_metrics(
    predicted: Ints, truth: GroundTruth, classes: Sequence[str]
) -> dict[str, ClassMetrics]:
    """Returns sensitivity, specificity and predictive value by class, melanoma first.

    predicted: (n,) class indices.
    """
    by_class = {}
    for index, name in enumerate(classes):
        is_predicted, is_true = predicted == index, truth.labels == index
        by_class[name] = ClassMetrics(
            sensitivity=proportion(is_predicted[is_true], truth.clusters[is_true]),
            specificity=proportion(~is_predicted[~is_true], truth.clusters[~is_true]),
            predictive_value=proportion(is_true[is_predicted], truth.clusters[is_predicted]),
        )
    first = {MELANOMA: by_class[MELANOMA]} if MELANOMA in by_class else {}
    return first | by_class


def group_metrics(
    uncertainty: Uncertainty, truth: GroundTruth, flagged: Mapping[ScoreName, Bools]
) -> dict[str, dict[str, GroupMetrics]]:
    """Returns the results by attribute, then by value in alphabetical order.

    flagged: (n,) by score with a threshold.
    """
    return {
        attribute: {
            value: _group(uncertainty, truth, flagged, np.array(values) == value)
            for value in sorted(set(values))
        }
        for attribute, values in truth.groups.items()
    }


def corruption_metrics(
    clean: SetPredictions,
    corrupted: Mapping[str, SetPredictions],
    labels: Ints,
    clusters: Ints,
) -> dict[str, Estimates]:
    """Returns the metrics of the same images without corruption, then under each corruption."""
    if not corrupted:
        return {}
    return {
        name: _corruption(clean, predictions, labels, clusters)
        for name, predictions in {CLEAN: clean, **corrupted}.items()
    }


def _group(
    uncertainty: Uncertainty,
    truth: GroundTruth,
    flagged: Mapping[ScoreName, Bools],
    members: Bools,
) -> GroupMetrics:
    """flagged, members: (n,)."""
    labels = truth.labels[members]
    clusters = np.unique(truth.clusters[members], return_inverse=True)[1]
    probabilities = uncertainty.probabilities.numpy()[members]
    msp = uncertainty.msp.numpy()[members]
    predicted = probabilities.argmax(axis=1)
    positive = np.isin(labels, truth.target)

    def metrics(weights: Weights) -> dict[str, Floats]:
        correct = predicted == labels
        values = {
            "accuracy": weighted_mean(correct, weights),
            "overconfidence": weighted_mean(msp - correct, weights),
            "auroc": auroc(probabilities[:, truth.target].sum(axis=1), positive, weights)
            if truth.target
            else macro_auroc(probabilities, labels, weights),
        }
        return values | _flagged({score: flag[members] for score, flag in flagged.items()}, weights)

    return GroupMetrics(
        images=len(labels),
        clusters=int(clusters.max()) + 1,
        target=int(positive.sum()),
        metrics=bootstrap(metrics, clusters),
        sensitivity=proportion(np.isin(predicted[positive], truth.target), clusters[positive]),
    )


def _corruption(
    clean: SetPredictions, corrupted: SetPredictions, labels: Ints, clusters: Ints
) -> Estimates:
    msp, correct = corrupted.uncertainty.msp.numpy(), corrupted.labels == labels
    all_msp = np.concatenate([clean.uncertainty.msp.numpy(), msp])
    is_clean = np.arange(len(all_msp)) < len(msp)

    def metrics(weights: Weights) -> dict[str, Floats]:
        values = {
            "accuracy": weighted_mean(correct, weights),
            "msp": weighted_mean(msp, weights),
            "entropy": weighted_mean(corrupted.uncertainty.entropy.numpy(), weights),
        }
        if corrupted is not clean:  # an image and its corruption are resampled together
            values["auroc"] = auroc(all_msp, is_clean, np.tile(weights, 2))
        return values | _flagged(corrupted.flags, weights)

    return bootstrap(metrics, clusters)


def _flagged(flagged: Mapping[ScoreName, Bools], weights: Weights) -> dict[str, Floats]:
    return {
        name: weighted_mean(flagged[score], weights)
        for score, name in FLAG_METRICS.items()
        if score in flagged
    }


def _predicted(uncertainty: Uncertainty) -> Ints:
    predicted: Ints = uncertainty.probabilities.argmax(dim=-1).numpy()
    return predicted

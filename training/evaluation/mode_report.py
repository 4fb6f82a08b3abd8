"""A model's figures in one mode, from its answers, each with its interval."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from eulerlora.uncertainty import Uncertainty
from training.data.datasets import ImageParts
from training.evaluation.intervals import (
    Estimate,
    Estimates,
    Floats,
    Ints,
    Weights,
    estimates,
    numbered,
)
from training.evaluation.metrics import (
    auroc,
    classification_metrics,
    macro_auroc,
    mean,
    ood_metrics,
)
from training.evaluation.report_schema import CLEAN, TEST, GroupFigures
from training.evaluation.selective import risk_coverage, selective_metrics
from training.evaluation.sensitivity import Proportion, proportion


@dataclass(frozen=True)
class Truth:
    """What is known of n test images beside their pixels.

    labels: (n,). clusters: (n,) numbers. groups: n names, by what the groups are of; where all
    images are in one group, it is left out. target: the indices of the target classes.
    """

    labels: Ints
    clusters: Ints
    groups: Mapping[str, Sequence[str]]
    target: Sequence[int]


def truth_of(images: ImageParts) -> Truth:
    """The test part of a data set."""
    test = images.parts[TEST]
    kinds = dict.fromkeys(kind for each in test for kind in each.groups)
    groups = {kind: [each.groups.get(kind, "") for each in test] for kind in kinds}
    names = [each.name for each in images.classes]
    return Truth(
        labels=np.array([each.label for each in test]),
        clusters=numbered([each.cluster or each.name for each in test]),
        groups={kind: found for kind, found in groups.items() if len(set(found)) > 1},
        target=[names.index(name) for name in images.target],
    )


def inside_metrics(log_probabilities: Tensor, found: Uncertainty, truth: Truth) -> Estimates:
    """The paper's metrics, AURC and AUGRC. log_probabilities: (n, trajectories, classes)."""
    wrong = _predicted(found) != truth.labels

    def figures(weights: Weights) -> dict[str, Floats]:
        curve = risk_coverage(found.msp.numpy(), wrong, weights)
        metrics = classification_metrics(log_probabilities, truth.labels, weights)
        return metrics | selective_metrics(curve)

    return estimates(figures, truth.clusters)


def outside_metrics(inside: Floats, outside: Floats, truth: Truth) -> Estimates:
    """How well MSP tells the test part from other images. inside: (n,). outside: (m,)."""
    return estimates(
        lambda weights: ood_metrics(inside, outside, weights),
        truth.clusters,
        np.arange(len(outside)),
    )


def flagged_share(msp: Floats, threshold: float | None, clusters: Ints) -> Estimate | None:
    """The share of images below the threshold; None where there is no threshold."""
    if threshold is None:
        return None
    return estimates(lambda weights: {"flagged": mean(msp < threshold, weights)}, clusters)[
        "flagged"
    ]


def group_figures(
    found: Uncertainty, truth: Truth, threshold: float | None
) -> dict[str, dict[str, GroupFigures]]:
    """Figures of each group, alphabetically, by what the groups are of."""
    return {
        kind: {
            name: _group(found, truth, threshold, np.array(names) == name)
            for name in sorted(set(names))
        }
        for kind, names in truth.groups.items()
    }


def corruption_metrics(
    clean: Uncertainty,
    corrupted: Mapping[str, Uncertainty],
    labels: Ints,
    clusters: Ints,
    threshold: float | None,
) -> dict[str, Estimates]:
    """Metrics of the same images as they are, then under each corruption, by its name."""
    if not corrupted:
        return {}
    return {
        name: _corruption(clean, each, labels, clusters, threshold)
        for name, each in {CLEAN: clean, **corrupted}.items()
    }


def _group(
    found: Uncertainty, truth: Truth, threshold: float | None, members: np.ndarray
) -> GroupFigures:
    """members: (n,) bool."""
    labels, clusters = (
        truth.labels[members],
        np.unique(truth.clusters[members], return_inverse=True)[1],
    )
    probabilities, msp = found.probabilities.numpy()[members], found.msp.numpy()[members]
    predicted = probabilities.argmax(axis=1)
    positive = np.isin(labels, truth.target)

    def figures(weights: Weights) -> dict[str, Floats]:
        right = predicted == labels
        return {
            "accuracy": mean(right, weights),
            "overconfidence": mean(msp - right, weights),
            "auroc": auroc(probabilities[:, truth.target].sum(axis=1), positive, weights)
            if truth.target
            else macro_auroc(probabilities, labels, weights),
        } | ({} if threshold is None else {"flagged": mean(msp < threshold, weights)})

    return GroupFigures(
        images=len(labels),
        clusters=int(clusters.max()) + 1,
        target=int(positive.sum()),
        metrics=estimates(figures, clusters),
        sensitivity=_sensitivity(predicted, positive, truth.target),
    )


def _sensitivity(predicted: Ints, positive: np.ndarray, target: Sequence[int]) -> Proportion | None:
    return proportion(int(np.isin(predicted[positive], target).sum()), int(positive.sum()))


def _corruption(
    clean: Uncertainty, found: Uncertainty, labels: Ints, clusters: Ints, threshold: float | None
) -> Estimates:
    msp = found.msp.numpy()
    both = np.concatenate([clean.msp.numpy(), msp])
    is_clean = np.arange(len(both)) < len(msp)

    def figures(weights: Weights) -> dict[str, Floats]:
        always = {
            "accuracy": mean(_predicted(found) == labels, weights),
            "msp": mean(msp, weights),
            "entropy": mean(found.entropy.numpy(), weights),
        }
        if found is not clean:  # an image and its corruption are drawn together
            always["auroc"] = auroc(both, is_clean, np.tile(weights, 2))
        if threshold is not None:
            always["flagged"] = mean(msp < threshold, weights)
        return always

    return estimates(figures, clusters)


def _predicted(found: Uncertainty) -> Ints:
    predicted: Ints = found.probabilities.argmax(dim=-1).numpy()
    return predicted

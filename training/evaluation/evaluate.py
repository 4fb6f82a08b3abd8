"""Evaluation of a checkpoint on its test part and on out-of-distribution sets.

Every result has a confidence interval over the clusters of images.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from eulerlora.answer import Predictions
from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.model import EulerLoRA
from eulerlora.scores.ood_scores import FeatureDistance, FlaggedScore, ScoreName
from eulerlora.scores.trajectories import Trajectories
from eulerlora_contract.printable import printable
from eulerlora_contract.sampling import Options, applying
from training.data.copies import KnownImages, images_in_training, known_images
from training.data.images import ImageParts, LabelledImage, OodSet, evenly_spaced
from training.data.units import Units
from training.evaluation.inference import predict_all
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
from training.evaluation.ood_sets import resemblance
from training.evaluation.prediction_sets import set_coverages
from training.evaluation.report_schema import (
    FLAG_METRICS,
    TEST,
    ClassMetrics,
    GroupMetrics,
    ModeReport,
    OodMetrics,
    OodSetFacts,
    Report,
    ScoreMetrics,
    Subset,
)


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


@dataclass(frozen=True)
class Evaluation:
    """A report and the predictions behind it, of the test part and of the other sets by name.

    Attributes:
        classes: In the order of the probabilities.
        training: Facts on the training of each member, as in the checkpoint's provenance.
    """

    report: Report
    classes: tuple[str, ...]
    test: EvaluatedSet
    ood: Mapping[str, EvaluatedSet]
    training: Sequence[Mapping[str, Any]] = ()


def evaluate(
    model: EulerLoRA,
    images: ImageParts,
    ood: Sequence[OodSet],
    options: Sequence[Options],
    ood_images: int | None = None,
    others: Sequence[EulerLoRA] = (),
) -> Evaluation:
    """Evaluates a model on a data set's test part, once for each of `options`.

    Each image is read once for each member.

    Args:
        model: The only one, or the first member of an ensemble.
        images: With a test part.
        ood: Sets with distinct names.
        options: Of the modes of the report.
        ood_images: At most so many of each set are used, evenly spaced; None for all.
        others: The other members of an ensemble, which answers with the mean over all of them.
    """
    models = (model, *others)
    shown = images.parts[TEST]

    def evaluated(
        name: str, group: str, of_set: Sequence[LabelledImage], of_test: bool
    ) -> EvaluatedSet:
        predictions = _predictions(models, of_set, options, name)
        return EvaluatedSet(name, group, of_set, of_test, predictions)

    used = [replace(outside, images=evenly_spaced(outside.images, ood_images)) for outside in ood]
    test = evaluated(TEST, TEST, shown, True)
    sets = {o.name: evaluated(o.name, o.group, o.images, o.generated) for o in used}
    target, units = model.config.target, Units.of(shown)
    data = f"{images.name}, test part" if len(images.parts) > 1 else images.name
    folder = model.folder
    known = KnownImages(None, None) if folder is None else known_images(folder, shown)
    report = Report(
        model=model.config.name,
        revision=_revision(models),
        precision=model.precision,
        data=data,
        images=len(shown),
        unit=units.unit,
        units=len(units),
        sampled=units.group,
        clusters=len(np.unique(units.groups)),
        seen=None if known.trained is None else len(known.trained),
        fitted=_fitted(model.config, data, known, len(shown)),
        notes=[
            printable(note)
            for note in (*images.notes, *(note for outside in ood for note in outside.notes))
        ],
        target=() if target is None else target.classes,
        ood_sets={
            outside.name: OodSetFacts(
                group=outside.group,
                generated=outside.generated,
                used=Subset(len(outside.images), len(whole.images)),
                seen=_seen(model, outside.images),
                resembles=resemblance(outside, model.config),
            )
            for outside, whole in zip(used, ood, strict=True)
        },
        modes=[_mode_report(model, mode, index, test, sets) for index, mode in enumerate(options)],
    )
    training = [member.config.provenance.get("training", {}) for member in models]
    return Evaluation(report, model.classes, test, sets, training)


def _fitted(config: CheckpointConfig, data: str, known: KnownImages, images: int) -> int | None:
    """How many test images the calibration used; None if it is not known.

    Without digests, the parts of a data set are told apart by their names.
    """
    if known.fitted is not None:
        return len(known.fitted)
    names = {of.data for of in config.thresholds} | {of.data for of in config.prediction_sets}
    if data in names:
        return images
    name = data.removesuffix(", test part")
    return 0 if all(other.startswith(f"{name}, ") for other in names) else None


def _seen(model: EulerLoRA, images: Sequence[LabelledImage]) -> int | None:
    """How many of the images the training was shown; None if it is not known."""
    seen = None if model.folder is None else images_in_training(model.folder, images)
    return None if seen is None else len(seen)


def _predictions(
    models: Sequence[EulerLoRA],
    images: Sequence[LabelledImage],
    options: Sequence[Options],
    name: str,
) -> list[Predictions]:
    outputs = [predict_all(model, images, options, name) for model in models]
    if len(models) == 1:
        return [
            Predictions.of(
                trajectories, models[0].feature_distance, models[0].config.threshold(choice)
            )
            for trajectories, choice in zip(outputs[0], options, strict=True)
        ]
    distances = [model.feature_distance for model in models]
    return [ensemble_summary(members, distances) for members in zip(*outputs, strict=True)]


def ensemble_summary(
    members: Sequence[Trajectories], distances: Sequence[FeatureDistance | None]
) -> Predictions:
    """The summary of the trajectories of all members together, without thresholds.

    The feature distance is the mean over the members, each with its own statistics.
    """
    summary = Predictions.of(Trajectories.of_ensemble(members))
    values = [
        Predictions.of(member, distance).ood_scores["feature_distance"].value
        for member, distance in zip(members, distances, strict=True)
        if distance is not None
    ]
    if not values:
        return summary
    mean = FlaggedScore(torch.stack(values).mean(dim=0), None, None)
    return replace(summary, ood_scores={**summary.ood_scores, "feature_distance": mean})


def _revision(models: Sequence[EulerLoRA]) -> str:
    """The revision of a model, or of an ensemble a digest of its members' revisions."""
    if len(models) == 1:
        return models[0].revision
    revisions = "\n".join(model.revision for model in models)
    return f"sha256:{hashlib.sha256(revisions.encode()).hexdigest()}"


def _mode_report(
    model: EulerLoRA,
    options: Options,
    index: int,
    test: EvaluatedSet,
    sets: Mapping[str, EvaluatedSet],
) -> ModeReport:
    """The results of the mode at `index` of the report."""
    inside, first = test.predictions[index], test.predictions[0]
    labels, clusters, target = test.labels, test.clusters, model.config.target
    classes = target.classes if target is not None else ()
    assert isinstance(options.samples, int)
    return ModeReport(
        mode=options.mode,
        samples=options.samples,
        views=options.views,
        sampler=options.sampler if options.mode == "stoch" else None,
        trajectories=inside.log_probabilities.shape[1],
        metrics=_metric_estimates(inside, labels, clusters),
        difference=_difference_estimates(inside, first, labels, clusters) if index else {},
        error_ranking=error_ranking(
            inside, inside.variance, inside.predicted.numpy() != labels, clusters
        ),
        classes=class_metrics(
            inside.probabilities.numpy(), labels, clusters, model.classes, classes
        ),
        thresholds={
            name: score.threshold
            for name, score in inside.ood_scores.items()
            if score.threshold is not None
        },
        flagged=flagged_shares(inside, clusters),
        ood={name: _ood_metrics(test, outside, index) for name, outside in sets.items()},
        groups=_group_metrics(test, index, [model.classes.index(name) for name in classes]),
        prediction_sets=set_coverages(
            inside.probabilities,
            test.images,
            model.classes,
            applying(model.config.prediction_sets, options),
        ),
    )


def _ood_metrics(test: EvaluatedSet, outside: EvaluatedSet, index: int) -> OodMetrics:
    labels, predicted = outside.labels, outside.predictions[index].predicted.numpy()
    labelled = bool((labels >= 0).all())
    return OodMetrics(
        scores=score_metrics(test, outside, index),
        accuracy=proportion(predicted == labels, outside.clusters) if labelled else None,
    )


def flagged_shares(predictions: Predictions, clusters: Ints) -> dict[ScoreName, Proportion | None]:
    """The share of flagged images by score with a threshold."""
    return {
        score: proportion(flags.numpy(), clusters) for score, flags in predictions.flags.items()
    }


def familiarity(score: ScoreName, values: Floats) -> Floats:
    """(n,) values of a score with the sign that makes them high in distribution."""
    return values if score == "msp" else -values


def score_metrics(
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
    flagged = flagged_shares(others, outside.clusters)

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


def class_metrics(
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

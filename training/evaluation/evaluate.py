"""Evaluation of a checkpoint on its test part, corruptions of it and out-of-distribution sets.

Every result has a confidence interval over the clusters of images.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.model import EulerLoRA
from eulerlora.scores.ood_scores import ScoreName
from eulerlora.scores.uncertainty import Uncertainty
from eulerlora_client.contract.answers import TargetClasses
from eulerlora_client.contract.sampling import Sampler
from eulerlora_client.policy.policy import default_policy
from training.data.digests import images_in_training
from training.data.images import ImageParts, LabelledImage, OodSet, evenly_spaced
from training.evaluation.corruptions import CORRUPTIONS, with_corruption
from training.evaluation.evaluated_sets import (
    EvaluatedSet,
    EvaluatedSets,
    ResamplingUnits,
    SetPredictions,
    accuracy,
    ensemble_predictions,
    flagged_shares,
    score_metrics,
    set_predictions,
)
from training.evaluation.inference import SamplingOptions, predict_all
from training.evaluation.intervals import (
    Bools,
    Estimates,
    Floats,
    Ints,
    Weights,
    bootstrap,
    cluster_indices,
    proportion,
    share_estimates,
)
from training.evaluation.metrics import (
    auroc,
    classification_metrics,
    error_ranking,
    macro_auroc,
    risk_coverage,
    selective_metrics,
    weighted_mean,
)
from training.evaluation.ood_sets import resemblance
from training.evaluation.prediction_sets import set_coverages
from training.evaluation.report_schema import (
    CLEAN,
    FLAG_METRICS,
    TEST,
    ClassMetrics,
    GroupMetrics,
    ModeReport,
    OodMetrics,
    OodSetFacts,
    Report,
    Subset,
)

CORRUPTED = "corrupted"
"""Group of the corrupted test images."""


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


@dataclass(frozen=True)
class Evaluation:
    """A report and the predictions behind it. classes: in the order of the probabilities."""

    report: Report
    classes: tuple[str, ...]
    sets: EvaluatedSets


def evaluate(
    model: EulerLoRA,
    images: ImageParts,
    ood: Sequence[OodSet],
    options: Sequence[SamplingOptions],
    ood_images: int | None = None,
    corrupted_images: int = 0,
    sampler: Sampler | None = None,
    others: Sequence[EulerLoRA] = (),
    folder: Path | None = None,
) -> Evaluation:
    """Evaluates a model on a data set's test part, once for each of `options`.

    ood: sets with distinct names; at most `ood_images` of each are used, evenly spaced; None uses
    all. corrupted_images: number of evenly spaced test images to which every corruption of
    CORRUPTIONS is applied. sampler: for `stoch`; None uses the checkpoint's. others: the other
    members of an ensemble, which answers with the mean over all of them. folder: the model's
    checkpoint, which knows the images of its training. Each image is read once for each member.
    """
    sampler = sampler or model.config.sampler
    used = [replace(outside, images=evenly_spaced(outside.images, ood_images)) for outside in ood]
    predict = partial(_evaluated, (model, *others), options, sampler)
    sets = _evaluated_sets(predict, images.parts[TEST], used, corrupted_images)
    target = target_of(model.config)
    truth = ground_truth(images, target)
    report = Report(
        model=model.config.name,
        revision=_revision((model, *others)),
        precision=model.precision,
        data=f"{images.name}, test part",
        images=len(truth.labels),
        clusters=len(set(truth.clusters.tolist())),
        seen=_seen(folder, images.parts[TEST]),
        target=() if target is None else target.classes,
        ood_sets={
            outside.name: OodSetFacts(
                group=outside.group,
                generated=outside.generated,
                used=Subset(len(outside.images), len(whole.images)),
                seen=_seen(folder, outside.images),
                resembles=resemblance(outside, model.config),
            )
            for outside, whole in zip(used, ood, strict=True)
        },
        corrupted=Subset(len(sets.chosen), len(truth.labels)),
        modes=[
            _mode_report(model, mode, sampler, index, sets, truth)
            for index, mode in enumerate(options)
        ],
    )
    return Evaluation(report, model.classes, sets)


def _seen(folder: Path | None, images: Sequence[LabelledImage]) -> int | None:
    """Returns how many of the images the training was shown; None if it is not known."""
    seen = None if folder is None else images_in_training(folder, images)
    return None if seen is None else len(seen)


def _evaluated_sets(
    predict: Callable[[str, str, Sequence[LabelledImage], bool], EvaluatedSet],
    test: Sequence[LabelledImage],
    ood: Sequence[OodSet],
    corrupted_images: int,
) -> EvaluatedSets:
    """predict: `_evaluated` with the model and its options."""
    chosen = list(evenly_spaced(range(len(test)), corrupted_images))
    corrupted = {
        corruption.name: with_corruption([test[index] for index in chosen], corruption)
        for corruption in (CORRUPTIONS if chosen else ())
    }
    return EvaluatedSets(
        test=predict(TEST, TEST, test, True),
        ood={
            outside.name: predict(outside.name, outside.group, outside.images, outside.generated)
            for outside in ood
        },
        corrupted={
            name: predict(name, CORRUPTED, shown, True) for name, shown in corrupted.items()
        },
        chosen=np.array(chosen, dtype=np.int64),
    )


def _evaluated(
    models: Sequence[EulerLoRA],
    options: Sequence[SamplingOptions],
    sampler: Sampler,
    name: str,
    group: str,
    images: Sequence[LabelledImage],
    of_test: bool,
) -> EvaluatedSet:
    outputs = [predict_all(model, images, options, name, sampler) for model in models]
    if len(models) > 1:
        distances = [model.feature_distance for model in models]
        by_mode = [
            ensemble_predictions(members, distances) for members in zip(*outputs, strict=True)
        ]
        return EvaluatedSet(name, group, images, of_test, by_mode)
    (model,) = models
    predictions = [
        set_predictions(
            output,
            model.feature_distance,
            model.config.threshold(choice.mode, choice.samples, sampler),
        )
        for choice, output in zip(options, outputs[0], strict=True)
    ]
    return EvaluatedSet(name, group, images, of_test, predictions)


def _revision(models: Sequence[EulerLoRA]) -> str:
    """Returns the revision of a model, or of an ensemble a digest of its members' revisions."""
    if len(models) == 1:
        return models[0].revision
    revisions = "\n".join(model.revision for model in models)
    return f"sha256:{hashlib.sha256(revisions.encode()).hexdigest()}"


def _mode_report(
    model: EulerLoRA,
    options: SamplingOptions,
    sampler: Sampler,
    index: int,
    sets: EvaluatedSets,
    truth: GroundTruth,
) -> ModeReport:
    """index: of the mode in the report."""
    inside, first = sets.test.predictions[index], sets.test.predictions[0]
    return ModeReport(
        mode=options.mode,
        samples=options.samples,
        sampler=sampler if options.mode == "stoch" else None,
        trajectories=inside.log_probabilities.shape[1],
        metrics=metric_estimates(inside.log_probabilities, inside.uncertainty, truth),
        difference=difference_estimates(inside.log_probabilities, first.log_probabilities, truth)
        if index
        else {},
        error_ranking=error_ranking(
            inside.uncertainty, inside.labels != truth.labels, truth.clusters
        ),
        classes=class_metrics(inside.labels, truth, model.classes),
        thresholds={
            name: score.threshold
            for name, score in inside.scores.items()
            if score.threshold is not None
        },
        flagged=flagged_shares(inside, truth.clusters),
        ood={name: _ood_metrics(sets.test, outside, index) for name, outside in sets.ood.items()},
        groups=group_metrics(inside.uncertainty, truth, inside.flags),
        corruptions=corruption_metrics(
            inside.selected(sets.chosen),
            {name: images.predictions[index] for name, images in sets.corrupted.items()},
            truth.labels[sets.chosen],
            np.unique(truth.clusters[sets.chosen], return_inverse=True)[1],
        ),
        prediction_sets=set_coverages(
            model, options, sampler, inside.uncertainty.probabilities, sets.test.images
        ),
    )


def _ood_metrics(test: EvaluatedSet, outside: EvaluatedSet, index: int) -> OodMetrics:
    """index: of the mode in the report."""
    predictions = outside.predictions[index]
    units = ResamplingUnits.of(test.clusters, outside.clusters, shared=outside.of_test)
    return OodMetrics(
        scores=score_metrics(test.predictions[index], predictions, units),
        accuracy=accuracy(outside.labels, predictions, units.outside),
    )


def target_of(config: CheckpointConfig) -> TargetClasses | None:
    """Returns the classes that count: the checkpoint's, or the packaged policy's if it has them."""
    packaged = default_policy().target
    names = {label.name for label in config.classes}
    return config.target or (packaged if set(packaged.classes) <= names else None)


def ground_truth(images: ImageParts, target: TargetClasses | None) -> GroundTruth:
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
        target=[] if target is None else [classes.index(name) for name in target.classes],
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

    shares = share_estimates({"accuracy": ~wrong}, truth.clusters)
    return bootstrap(metrics, truth.clusters) | shares


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
    """Returns sensitivity, specificity and predictive value by class, the target first.

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
    first = {classes[index]: by_class[classes[index]] for index in truth.target}
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

    correct = predicted == labels

    def metrics(weights: Weights) -> dict[str, Floats]:
        return {
            "overconfidence": weighted_mean(msp - correct, weights),
            "auroc": auroc(probabilities[:, truth.target].sum(axis=1), positive, weights)
            if truth.target
            else macro_auroc(probabilities, labels, weights),
        }

    shares = {"accuracy": correct} | _flags(
        {name: flags[members] for name, flags in flagged.items()}
    )
    return GroupMetrics(
        images=len(labels),
        clusters=int(clusters.max()) + 1,
        target=int(positive.sum()),
        metrics=bootstrap(metrics, clusters) | share_estimates(shares, clusters),
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
            "msp": weighted_mean(msp, weights),
            "entropy": weighted_mean(corrupted.uncertainty.entropy.numpy(), weights),
        }
        if corrupted is not clean:  # an image and its corruption are resampled together
            values["auroc"] = auroc(all_msp, is_clean, np.tile(weights, 2))
        return values

    shares = {"accuracy": correct} | _flags(corrupted.flags)
    return bootstrap(metrics, clusters) | share_estimates(shares, clusters)


def _flags(flagged: Mapping[ScoreName, Bools]) -> dict[str, Bools]:
    return {name: flagged[score] for score, name in FLAG_METRICS.items() if score in flagged}


def _predicted(uncertainty: Uncertainty) -> Ints:
    predicted: Ints = uncertainty.probabilities.argmax(dim=-1).numpy()
    return predicted

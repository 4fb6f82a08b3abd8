"""Evaluation of a checkpoint on its test part, corruptions of it and out-of-distribution sets."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from eulerlora.model import EulerLoRA
from eulerlora_client.contract.sampling import Sampler
from training.data.images import ImageParts, LabelledImage, OodSet, evenly_spaced
from training.evaluation.evaluated_sets import (
    EvaluatedSet,
    EvaluatedSets,
    ResamplingUnits,
    accuracy,
    ensemble_predictions,
    flagged_shares,
    score_metrics,
    set_predictions,
)
from training.evaluation.inference import SamplingOptions, predict_all
from training.evaluation.mode_report import (
    GroundTruth,
    class_metrics,
    corruption_metrics,
    difference_estimates,
    ground_truth,
    group_metrics,
    metric_estimates,
)
from training.evaluation.prediction_sets import set_coverages
from training.evaluation.report_schema import (
    TEST,
    ModeReport,
    OodMetrics,
    OodSetFacts,
    Report,
    Subset,
)
from training.metrics.selective_prediction import error_ranking
from training.ood.corruptions import CORRUPTIONS, with_corruption
from training.ood.resemblance import resemblance

CORRUPTED = "corrupted"
"""Group of the corrupted test images."""


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
) -> Evaluation:
    """Evaluates a model on a data set's test part, once for each of `options`.

    ood: sets with distinct names; at most `ood_images` of each are used, evenly spaced; None uses
    all. corrupted_images: number of evenly spaced test images to which every corruption of
    CORRUPTIONS is applied. sampler: for `stoch`; None uses the checkpoint's. others: the other
    members of an ensemble, which answers with the mean over all of them. Each image is read once
    for each member.
    """
    sampler = sampler or model.config.sampler
    used = [replace(outside, images=evenly_spaced(outside.images, ood_images)) for outside in ood]
    predict = partial(_evaluated, (model, *others), options, sampler)
    sets = _evaluated_sets(predict, images.parts[TEST], used, corrupted_images)
    truth = ground_truth(images)
    report = Report(
        model=model.config.name,
        revision=_revision((model, *others)),
        precision=model.precision,
        data=f"{images.name}, test part",
        images=len(truth.labels),
        clusters=len(set(truth.clusters.tolist())),
        target=images.target,
        ood_sets={
            outside.name: OodSetFacts(
                group=outside.group,
                generated=outside.generated,
                used=Subset(len(outside.images), len(whole.images)),
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

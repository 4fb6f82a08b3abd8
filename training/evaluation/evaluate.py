"""Evaluation of a checkpoint on its test part, corruptions of it and out-of-distribution sets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from eulerlora.model import EulerLoRA
from eulerlora.settings import Sampler
from eulerlora.uncertainty import Uncertainty, summarise
from training.data.labelled_images import ImageParts, LabelledImage, evenly_spaced
from training.evaluation.inference import SamplingOptions, predict_all
from training.evaluation.intervals import Ints
from training.evaluation.mode_report import (
    GroundTruth,
    class_metrics,
    corruption_metrics,
    flagged_share,
    ground_truth,
    group_metrics,
    metric_estimates,
    ood_estimates,
)
from training.evaluation.report_schema import TEST, ModeReport, Report, Subset
from training.evaluation.selective_prediction import error_ranking
from training.ood.corruptions import CORRUPTIONS, corrupted_images


@dataclass(frozen=True)
class Predictions:
    """Predictions of a model in one mode; metrics and charts are computed from them.

    log_probabilities: (n, trajectories, classes) of the test part. uncertainty: their summary.
    ood: summaries by out-of-distribution set. corrupted: summaries by corruption.
    """

    log_probabilities: Tensor
    uncertainty: Uncertainty
    ood: Mapping[str, Uncertainty]
    corrupted: Mapping[str, Uncertainty]


@dataclass(frozen=True)
class Evaluation:
    """A report and the predictions behind it, one for each of the report's modes.

    classes: names in the order of the probabilities. labels: (n,) of the test part.
    """

    report: Report
    classes: tuple[str, ...]
    labels: Ints
    predictions: Sequence[Predictions]


def evaluate(
    model: EulerLoRA,
    images: ImageParts,
    ood: Mapping[str, Sequence[LabelledImage]],
    options: Sequence[SamplingOptions],
    ood_images: int | None = None,
    corrupted_images: int = 0,
    sampler: Sampler | None = None,
) -> Evaluation:
    """Evaluates a model on a data set's test part, once for each of `options`.

    ood: out-of-distribution sets by name; at most `ood_images` of each are used, evenly spaced;
    None uses all. corrupted_images: number of evenly spaced test images to which every corruption
    of CORRUPTIONS is applied. sampler: for `stoch`; None uses the checkpoint's. Each image is
    read once.
    """
    sampler = sampler or model.config.sampler
    test = images.parts[TEST]
    used = {name: evenly_spaced(outside, ood_images) for name, outside in ood.items()}
    chosen = evenly_spaced(range(len(test)), corrupted_images)

    def predict(shown: Sequence[LabelledImage], label: str) -> list[Tensor]:
        return predict_all(model, shown, options, label, sampler)

    predictions = _predictions(predict, test, used, [test[index] for index in chosen])
    truth = ground_truth(images)
    report = Report(
        model=model.config.name,
        revision=model.revision,
        data=f"{images.name}, test part",
        images=len(test),
        clusters=len(set(truth.clusters.tolist())),
        target=images.target,
        ood_images={name: Subset(len(used[name]), len(ood[name])) for name in ood},
        corrupted=Subset(len(chosen), len(test)),
        modes=[
            _mode_report(model, mode, sampler, predicted, truth, np.array(chosen, dtype=np.int64))
            for mode, predicted in zip(options, predictions, strict=True)
        ],
    )
    return Evaluation(report, model.classes, truth.labels, predictions)


def _predictions(
    predict: Callable[[Sequence[LabelledImage], str], list[Tensor]],
    test: Sequence[LabelledImage],
    ood: Mapping[str, Sequence[LabelledImage]],
    to_corrupt: Sequence[LabelledImage],
) -> list[Predictions]:
    """Returns the predictions for each mode. to_corrupt: the images that get corrupted."""
    corruptions = {
        corruption.name: corrupted_images(to_corrupt, corruption) for corruption in CORRUPTIONS
    }
    inside = predict(test, TEST)
    outside = {name: predict(shown, name) for name, shown in ood.items()}
    corrupted = {
        name: predict(shown, name) for name, shown in corruptions.items() if len(to_corrupt)
    }
    return [
        Predictions(
            log_probabilities=inside[index].flatten(1, 2),
            uncertainty=_summary(inside[index]),
            ood={name: _summary(by_mode[index]) for name, by_mode in outside.items()},
            corrupted={name: _summary(by_mode[index]) for name, by_mode in corrupted.items()},
        )
        for index in range(len(inside))
    ]


def _summary(log_probabilities: Tensor) -> Uncertainty:
    """log_probabilities: (n, adapters, samples, classes)."""
    return summarise(log_probabilities.flatten(1, 2).exp())


def _mode_report(
    model: EulerLoRA,
    options: SamplingOptions,
    sampler: Sampler,
    predictions: Predictions,
    truth: GroundTruth,
    corrupted: Ints,
) -> ModeReport:
    """corrupted: indices of the corrupted images."""
    threshold = model.config.threshold(options.mode, options.samples, sampler)
    uncertainty, msp = predictions.uncertainty, predictions.uncertainty.msp.numpy()
    outside = {name: summary.msp.numpy() for name, summary in predictions.ood.items()}
    predicted = uncertainty.probabilities.argmax(dim=-1).numpy()
    clean = Uncertainty(**{name: values[corrupted] for name, values in vars(uncertainty).items()})
    return ModeReport(
        mode=options.mode,
        samples=options.samples,
        sampler=sampler if options.mode == "stoch" else None,
        trajectories=predictions.log_probabilities.shape[1],
        metrics=metric_estimates(predictions.log_probabilities, uncertainty, truth),
        error_ranking=error_ranking(uncertainty, predicted != truth.labels, truth.clusters),
        classes=class_metrics(predicted, truth, model.classes),
        ood={name: ood_estimates(msp, scores, truth) for name, scores in outside.items()},
        threshold=threshold,
        flagged={
            TEST: flagged_share(msp, threshold, truth.clusters),
            **{
                name: flagged_share(scores, threshold, np.arange(len(scores)))
                for name, scores in outside.items()
            },
        },
        groups=group_metrics(uncertainty, truth, threshold),
        corruptions=corruption_metrics(
            clean,
            predictions.corrupted,
            truth.labels[corrupted],
            np.unique(truth.clusters[corrupted], return_inverse=True)[1],
            threshold,
        ),
    )

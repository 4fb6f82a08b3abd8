"""Which charts an evaluation report has, with their files and titles."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from sklearn.metrics import confusion_matrix

from eulerlora.scores.ood_scores import ScoreName
from training.evaluation.evaluate import Evaluation
from training.evaluation.intervals import unit_weights
from training.evaluation.metrics import calibration_bins, risk_coverage
from training.evaluation.mode_report import EvaluatedSet
from training.evaluation.report_schema import CHART_FILE, FLAG_METRICS, ModeReport
from training.reporting.charts import (
    class_curves,
    confusion_chart,
    learning_curves,
    picture_grid,
    reliability_diagram,
    risk_coverage_chart,
    score_histograms,
)
from training.reporting.tables import SCORE_NAMES, counted_images, ood_groups

_PICTURES = 12


@dataclass(frozen=True)
class ChartFile:
    """A figure, with the name of its PNG file."""

    name: str
    alt_text: str
    figure: Figure


def chart_files(evaluation: Evaluation, pictures: bool) -> Iterator[ChartFile]:
    """Yields reliability, risk-coverage and learning curves, then the charts of each mode.

    With `pictures`, also test images: the most uncertain ones, and those with a wrong label.
    """
    report, labels = evaluation.report, evaluation.test.labels
    subtitle = f"{report.title}\n{counted_images(report)}"
    modes = list(zip(report.modes, evaluation.test.predictions, strict=True))
    bins = {
        mode.title: calibration_bins(predictions.probabilities.numpy(), labels)
        for mode, predictions in modes
    }
    yield ChartFile(CHART_FILE, "Reliability diagrams", reliability_diagram(bins, subtitle))
    weights = unit_weights(len(labels))
    curves = {
        mode.title: [risk_coverage(p.msp.numpy(), p.predicted.numpy() != labels, weights)]
        for mode, p in modes
    }
    figure = risk_coverage_chart(curves, f"Risk by coverage\n{subtitle}")
    yield ChartFile("risk-coverage.png", "Risk-coverage curves", figure)
    if any("loss_by_epoch" in facts for facts in evaluation.training):
        figure = learning_curves(
            evaluation.training, f"Learning curves\n{report.model} ({report.method.title})"
        )
        yield ChartFile("learning-curves.png", "Learning curves", figure)
    for index, mode in enumerate(report.modes):
        yield from _mode_charts(evaluation, mode, index, subtitle)
    if pictures:
        yield from _picture_charts(evaluation.test, report.modes[-1], evaluation.classes, subtitle)


def _mode_charts(
    evaluation: Evaluation, mode: ModeReport, index: int, subtitle: str
) -> Iterator[ChartFile]:
    classes, test = evaluation.classes, evaluation.test
    probabilities = test.predictions[index].probabilities.numpy()
    options = mode.options
    suffix = "det" if options.mode == "det" else f"stoch-{options.samples}"
    counts = confusion_matrix(
        test.labels, test.predictions[index].predicted, labels=range(len(classes))
    )
    figure = confusion_chart(counts, classes, f"Confusion, {mode.title}\n{subtitle}")
    yield ChartFile(f"confusion-{suffix}.png", f"Confusion matrix, {mode.title}", figure)
    figure = class_curves(
        probabilities, test.labels, classes, f"By class, {mode.title}\n{subtitle}"
    )
    alt_text = f"ROC and precision-recall curves by class, {mode.title}"
    yield ChartFile(f"roc-precision-recall-{suffix}.png", alt_text, figure)
    for score in FLAG_METRICS:
        if score in test.predictions[index].ood_scores:
            figure = _histograms(evaluation, mode, index, score, subtitle)
            file = f"{score.replace('_', '-')}-{suffix}.png"
            yield ChartFile(file, f"Histograms of {SCORE_NAMES[score]}, {mode.title}", figure)


def _histograms(
    evaluation: Evaluation, mode: ModeReport, index: int, score: ScoreName, subtitle: str
) -> Figure:
    outside = {
        f"{group}, {len(names)} set{'s' * (len(names) > 1)}": np.concatenate(
            [
                evaluation.ood[name].predictions[index].ood_scores[score].value.numpy()
                for name in names
            ]
        )
        for group, names in ood_groups(evaluation.report).items()
    }
    inside = evaluation.test.predictions[index].ood_scores[score].value.numpy()
    threshold = mode.thresholds.get(score)
    title = f"{SCORE_NAMES[score]}, {mode.title}\n{subtitle}"
    return score_histograms(inside, outside, score, threshold, title)


def _picture_charts(
    test: EvaluatedSet, mode: ModeReport, classes: Sequence[str], subtitle: str
) -> Iterator[ChartFile]:
    """Yields the most uncertain images, and those with a wrong label, of the last mode."""
    predictions = test.predictions[-1]
    uncertain = np.argsort(-predictions.entropy.numpy(), kind="stable")
    certain = np.argsort(-predictions.msp.numpy(), kind="stable")
    wrong = certain[(predictions.predicted.numpy() != test.labels)[certain]]
    for name, indices, kind in (
        ("uncertain-images.png", uncertain, "test images, those of highest entropy"),
        ("wrong-images.png", wrong, "wrong labels, those of highest MSP"),
    ):
        if len(indices):
            shown = indices[:_PICTURES]
            title = f"{len(shown)} of {len(indices):,} {kind}, {mode.title}"
            figure = picture_grid(test, predictions, shown, classes, f"{title}\n{subtitle}")
            yield ChartFile(name, title, figure)

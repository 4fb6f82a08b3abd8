"""The chart files of an evaluation report."""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import confusion_matrix

from eulerlora.scores.ood_scores import ScoreName
from eulerlora.scores.uncertainty import Uncertainty
from training.evaluation.evaluate import Evaluation
from training.evaluation.report_schema import FLAG_METRICS, ModeReport
from training.metrics.classification import calibration_bins
from training.metrics.intervals import Ints, unit_weights
from training.metrics.selective_prediction import RiskCoverage, risk_coverage
from training.reporting.charts import (
    confusion_chart,
    reliability_diagram,
    risk_coverage_chart,
    score_histograms,
)
from training.reporting.ood_tables import ood_groups
from training.reporting.tables import SCORE_NAMES

PIXELS_PER_INCH = 120
RELIABILITY = "reliability.png"


@dataclass(frozen=True)
class ChartFile:
    """A chart with its file name and its alternative text."""

    name: str
    alt_text: str
    figure: Figure


def chart_files(evaluation: Evaluation) -> Iterator[ChartFile]:
    """Yields reliability and risk-coverage of all modes, then confusion and OOD scores by mode."""
    report, labels = evaluation.report, evaluation.sets.test.labels
    subtitle = f"{report.model} on {report.data} ({report.images:,} images)"
    modes = list(zip(report.modes, evaluation.sets.test.predictions, strict=True))
    bins = {
        mode.title: calibration_bins(predictions.uncertainty.probabilities.numpy(), labels)
        for mode, predictions in modes
    }
    yield ChartFile(RELIABILITY, "Reliability diagrams", reliability_diagram(bins, subtitle))
    curves = {mode.title: _curve(predictions.uncertainty, labels) for mode, predictions in modes}
    figure = risk_coverage_chart(curves, f"Risk by coverage\n{subtitle}")
    yield ChartFile("risk-coverage.png", "Risk-coverage curves", figure)
    for index, mode in enumerate(report.modes):
        yield from _mode_charts(evaluation, mode, index, subtitle)


def png(figure: Figure) -> bytes:
    """Returns a figure as PNG with at most 256 colours; equal figures give equal bytes."""
    rendered, content = BytesIO(), BytesIO()
    figure.savefig(rendered, format="png", dpi=PIXELS_PER_INCH)
    with Image.open(rendered) as image:
        image.convert("RGB").quantize().save(content, "PNG", optimize=True)
    return content.getvalue()


def _curve(uncertainty: Uncertainty, labels: Ints) -> RiskCoverage:
    wrong = uncertainty.probabilities.numpy().argmax(axis=1) != labels
    return risk_coverage(uncertainty.msp.numpy(), wrong, unit_weights(len(labels)))


def _mode_charts(
    evaluation: Evaluation, mode: ModeReport, index: int, subtitle: str
) -> Iterator[ChartFile]:
    """index: of the mode in the report."""
    classes, test = evaluation.classes, evaluation.sets.test
    suffix = mode.mode if mode.mode == "det" else f"{mode.mode}-{mode.samples}"
    counts = confusion_matrix(
        test.labels, test.predictions[index].labels, labels=range(len(classes))
    )
    figure = confusion_chart(counts, classes, f"Confusion, {mode.title}\n{subtitle}")
    yield ChartFile(f"confusion-{suffix}.png", f"Confusion matrix, {mode.title}", figure)
    for score in FLAG_METRICS:
        if score in test.predictions[index].scores:
            figure = _histograms(evaluation, mode, index, score, subtitle)
            file = f"{score.replace('_', '-')}-{suffix}.png"
            yield ChartFile(file, f"Histograms of {SCORE_NAMES[score]}, {mode.title}", figure)


def _histograms(
    evaluation: Evaluation, mode: ModeReport, index: int, score: ScoreName, subtitle: str
) -> Figure:
    """Returns histograms of a score in the test part and in each group of sets."""
    sets = evaluation.sets
    outside = {
        f"{group}, {len(names)} set{'s' * (len(names) > 1)}": np.concatenate(
            [sets.ood[name].predictions[index].scores[score].value.numpy() for name in names]
        )
        for group, names in ood_groups(evaluation.report).items()
    }
    inside = sets.test.predictions[index].scores[score].value.numpy()
    threshold = mode.thresholds.get(score)
    title = f"{SCORE_NAMES[score]}, {mode.title}\n{subtitle}"
    return score_histograms(inside, outside, score, threshold, title)

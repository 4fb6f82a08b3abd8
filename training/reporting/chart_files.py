"""The chart files of an evaluation report."""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import confusion_matrix

from eulerlora.uncertainty import Uncertainty
from training.evaluation.evaluate import Evaluation, Predictions
from training.evaluation.intervals import Ints, unit_weights
from training.evaluation.metrics import calibration_bins
from training.evaluation.report_schema import ModeReport
from training.evaluation.selective_prediction import RiskCoverage, risk_coverage
from training.reporting.charts import (
    confusion_chart,
    msp_histograms,
    reliability_diagram,
    risk_coverage_chart,
)

PIXELS_PER_INCH = 120
RELIABILITY = "reliability.png"


@dataclass(frozen=True)
class ChartFile:
    """A chart with its file name and its alternative text."""

    name: str
    alt_text: str
    figure: Figure


def chart_files(evaluation: Evaluation) -> Iterator[ChartFile]:
    """Yields reliability and risk-coverage charts of all modes, then confusion and MSP by mode."""
    report, labels = evaluation.report, evaluation.labels
    subtitle = f"{report.model} on {report.data} ({report.images:,} images)"
    modes = list(zip(report.modes, evaluation.predictions, strict=True))
    bins = {
        mode.title: calibration_bins(predictions.uncertainty.probabilities.numpy(), labels)
        for mode, predictions in modes
    }
    yield ChartFile(RELIABILITY, "Reliability diagrams", reliability_diagram(bins, subtitle))
    curves = {mode.title: _curve(predictions.uncertainty, labels) for mode, predictions in modes}
    figure = risk_coverage_chart(curves, f"Risk by coverage\n{subtitle}")
    yield ChartFile("risk-coverage.png", "Risk-coverage curves", figure)
    for mode, predictions in modes:
        yield from _mode_charts(evaluation, mode, predictions, subtitle)


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
    evaluation: Evaluation, mode: ModeReport, predictions: Predictions, subtitle: str
) -> Iterator[ChartFile]:
    classes = evaluation.classes
    suffix = mode.mode if mode.mode == "det" else f"{mode.mode}-{mode.samples}"
    predicted = predictions.uncertainty.probabilities.numpy().argmax(axis=1)
    counts = confusion_matrix(evaluation.labels, predicted, labels=range(len(classes)))
    figure = confusion_chart(counts, classes, f"Confusion, {mode.title}\n{subtitle}")
    yield ChartFile(f"confusion-{suffix}.png", f"Confusion matrix, {mode.title}", figure)

    outside = {name: uncertainty.msp.numpy() for name, uncertainty in predictions.ood.items()}
    title = f"Maximum softmax probability, {mode.title}\n{subtitle}"
    figure = msp_histograms(predictions.uncertainty.msp.numpy(), outside, mode.threshold, title)
    yield ChartFile(f"msp-{suffix}.png", f"Histograms of MSP, {mode.title}", figure)

"""The pictures of an evaluation report."""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import confusion_matrix

from eulerlora.uncertainty import Uncertainty
from training.evaluation.evaluate import Answers, Evaluation
from training.evaluation.intervals import Ints, once
from training.evaluation.metrics import calibration_bins
from training.evaluation.report_schema import ModeReport
from training.evaluation.selective import RiskCoverage, risk_coverage
from training.reporting.charts import (
    confusion_chart,
    msp_histograms,
    reliability_diagram,
    risk_coverage_chart,
)

PIXELS_PER_INCH = 120
RELIABILITY = "reliability.png"


@dataclass(frozen=True)
class Picture:
    """A figure, the name of its file, and what a reader who cannot see it is told."""

    file: str
    description: str
    figure: Figure


def pictures_of(evaluation: Evaluation) -> Iterator[Picture]:
    """Reliability and risk-coverage of all modes; confusion and MSP in each."""
    report, labels = evaluation.report, evaluation.labels
    measured = f"{report.model} on {report.data} ({report.images:,} images)"
    modes = list(zip(report.modes, evaluation.answers, strict=True))
    bins = {
        figures.title: calibration_bins(answers.found.probabilities.numpy(), labels)
        for figures, answers in modes
    }
    yield Picture(RELIABILITY, "Reliability diagrams", reliability_diagram(bins, measured))
    curves = {figures.title: _curve(answers.found, labels) for figures, answers in modes}
    chart = risk_coverage_chart(curves, f"Risk by coverage\n{measured}")
    yield Picture("risk-coverage.png", "Risk-coverage curves", chart)
    for figures, answers in modes:
        yield from _of_mode(evaluation, figures, answers, measured)


def png(figure: Figure) -> bytes:
    """The figure as PNG of at most 256 colours; the same figure gives the same bytes."""
    drawn, content = BytesIO(), BytesIO()
    figure.savefig(drawn, format="png", dpi=PIXELS_PER_INCH)
    with Image.open(drawn) as picture:
        picture.convert("RGB").quantize().save(content, "PNG", optimize=True)
    return content.getvalue()


def _curve(found: Uncertainty, labels: Ints) -> RiskCoverage:
    wrong = found.probabilities.numpy().argmax(axis=1) != labels
    return risk_coverage(found.msp.numpy(), wrong, once(len(labels)))


def _of_mode(
    evaluation: Evaluation, figures: ModeReport, answers: Answers, measured: str
) -> Iterator[Picture]:
    mode, classes = figures.title, evaluation.classes
    suffix = figures.mode if figures.mode == "det" else f"{figures.mode}-{figures.samples}"
    predicted = answers.found.probabilities.numpy().argmax(axis=1)
    counts = confusion_matrix(evaluation.labels, predicted, labels=range(len(classes)))
    chart = confusion_chart(counts, classes, f"Confusion, {mode}\n{measured}")
    yield Picture(f"confusion-{suffix}.png", f"Confusion matrix, {mode}", chart)

    outside = {name: each.msp.numpy() for name, each in answers.outside.items()}
    title = f"Maximum softmax probability, {mode}\n{measured}"
    chart = msp_histograms(answers.found.msp.numpy(), outside, figures.threshold, title)
    yield Picture(f"msp-{suffix}.png", f"Histograms of MSP, {mode}", chart)

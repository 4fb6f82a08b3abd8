"""The pictures of an evaluation report."""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

from matplotlib.figure import Figure
from sklearn.metrics import confusion_matrix

from training.charts import (
    confusion_chart,
    msp_histograms,
    reliability_diagram,
    risk_coverage_chart,
)
from training.evaluate import Answers, Evaluation, ModeReport
from training.metrics import calibration_bins

PIXELS_PER_INCH = 150


@dataclass(frozen=True)
class Picture:
    """A figure, the name of its file, and what a reader who cannot see it is told."""

    file: str
    description: str
    figure: Figure


def pictures_of(evaluation: Evaluation) -> Iterator[Picture]:
    """Reliability, confusion and MSP in each mode, and the risk-coverage curves of all modes."""
    report = evaluation.report
    measured = f"{report.model} on {report.data} ({report.images:,} images)"
    curves = {
        figures.title: answers.curve
        for figures, answers in zip(report.modes, evaluation.answers, strict=True)
    }
    chart = risk_coverage_chart(curves, f"Risk by coverage\n{measured}")
    yield Picture("risk-coverage.png", "Risk-coverage curves", chart)
    for figures, answers in zip(report.modes, evaluation.answers, strict=True):
        yield from _of_mode(evaluation, figures, answers, measured)


def png(figure: Figure) -> bytes:
    """The figure as PNG; the same figure gives the same bytes."""
    content = BytesIO()
    figure.savefig(content, format="png", dpi=PIXELS_PER_INCH, metadata={"Software": None})
    return content.getvalue()


def _of_mode(
    evaluation: Evaluation, figures: ModeReport, answers: Answers, measured: str
) -> Iterator[Picture]:
    mode, labels = figures.title, evaluation.labels.numpy()
    suffix = figures.mode if figures.mode == "det" else f"{figures.mode}-{figures.samples}"
    probabilities = answers.probabilities.numpy()

    def picture(name: str, description: str, figure: Figure) -> Picture:
        return Picture(f"{name}-{suffix}.png", f"{description}, {mode}", figure)

    bins = calibration_bins(probabilities, labels)
    title = f"Reliability, {mode}\n{measured}"
    diagram = reliability_diagram(bins, figures.metrics["ece"], title)
    yield picture("reliability", "Reliability diagram", diagram)

    classes = evaluation.classes
    counts = confusion_matrix(labels, probabilities.argmax(axis=1), labels=range(len(classes)))
    chart = confusion_chart(counts, classes, f"Confusion, {mode}\n{measured}")
    yield picture("confusion", "Confusion matrix", chart)

    outside = {name: scores.numpy() for name, scores in answers.outside.items()}
    title = f"Maximum softmax probability, {mode}\n{measured}"
    histograms = msp_histograms(answers.msp.numpy(), outside, figures.threshold, title)
    yield picture("msp", "Histograms of the maximum softmax probability", histograms)

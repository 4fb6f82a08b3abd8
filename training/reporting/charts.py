"""The charts of an evaluation report, as matplotlib figures without global state.

A function takes figures and names and returns a figure that shows all of them; it reads no file and
computes no metric but the areas that a legend states. `write_figure` writes equal figures as equal
bytes.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from PIL import Image
from sklearn.metrics import (
    auc,
    average_precision_score,
    precision_recall_curve,
    roc_curve,
)
from torchvision.transforms.v2.functional import to_pil_image

from eulerlora.answer import Predictions
from eulerlora.scores.ood_scores import ScoreName
from eulerlora_contract.output_files import atomic_write
from eulerlora_contract.printable import printable
from training.evaluation.intervals import Floats, Ints
from training.evaluation.metrics import (
    CalibrationBins,
    RiskCoverage,
    selective_metrics,
)
from training.evaluation.mode_report import EvaluatedSet

__all__ = [
    "FigureFormat",
    "class_curves",
    "confusion_chart",
    "learning_curves",
    "picture_grid",
    "reliability_chart",
    "reliability_diagram",
    "risk_coverage_chart",
    "roc_chart",
    "score_histograms",
    "threshold_chart",
    "write_figure",
]

FigureFormat = Literal["svg", "pdf"]

# The Okabe-Ito palette, which colour-blind readers can distinguish: blue, vermilion, green,
# orange, purple, sky blue.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9")
_LINES = ("-", "--", ":", "-.")
_LABELLED = 12
"""Classes of a chart with a line and a legend for each; more are thin and grey."""
_FEWEST_IN_BIN = 10
"""Images that say something about the accuracy in a bin."""
_FAINT = 0.25
"""Opacity of bins with fewer."""
_THUMBNAIL = 224  # pixels
_UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
_SCORE_AXES: Mapping[ScoreName, str] = {
    "msp": "maximum softmax probability (MSP)",
    "energy": "energy",
    "feature_distance": "feature distance",
}


def write_figure(figure: Figure, path: Path) -> None:
    """Writes a figure atomically, as the suffix says: .png, .svg or .pdf.

    Equal figures give equal bytes. A PNG without pictures has at most 256 colours.
    """
    form, content = path.suffix[1:].lower(), BytesIO()
    # Text remains text, in PDF as TrueType: publishers refuse Type 3 fonts, the default.
    with rc_context({"svg.hashsalt": "eulerlora", "svg.fonttype": "none", "pdf.fonttype": 42}):
        figure.savefig(
            content, format=form, dpi=120, bbox_inches="tight", metadata=_UNDATED.get(form)
        )
    if form == "png":
        with Image.open(content, formats=["PNG"]) as image:
            shown = image.convert("RGB")
        if not any(len(drawn.get_shape()) == 3 for axes in figure.axes for drawn in axes.images):
            # The default merges colours of few pixels, such as those of thin lines.
            shown = shown.quantize(method=Image.Quantize.FASTOCTREE)
        content = BytesIO()
        shown.save(content, "PNG", optimize=True)
    with atomic_write(path) as partial:
        partial.write_bytes(content.getvalue())


def reliability_diagram(calibration: Mapping[str, CalibrationBins], title: str) -> Figure:
    """Reliability diagrams side by side, one for each name, with bin counts below.

    The bars are the accuracy and its gap to the mean top probability. Bins of fewer than 10
    images are faint.
    """
    figure = _figure(0.6 + 4.8 * len(calibration), 6.2, title)
    axes = figure.subplots(
        2, len(calibration), sharex=True, sharey="row", height_ratios=(3, 1), squeeze=False
    )
    for (name, bins), accuracy_axes, count_axes in zip(calibration.items(), *axes, strict=True):
        _draw_accuracy(accuracy_axes, bins)
        error = _calibration_error(bins)
        accuracy_axes.set_title(f"{name}: ECE {error:.3f}", fontsize=11)
        counts = count_axes.bar(
            bins.edges[:-1], bins.images, np.diff(bins.edges), align="edge", color=_COLOURS[0],
            edgecolor="white",
        )  # fmt: skip
        labels = [f"{count:,}" if count else "" for count in bins.images]
        count_axes.bar_label(counts, labels, fontsize=8)
        count_axes.set(xlabel="top probability, bins (lo, hi]", xticks=bins.edges[::2])
    axes[0, 0].set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    axes[1, 0].set(ylabel="images")
    axes[1, 0].margins(y=0.25)
    legend = figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3
    )
    for handle in legend.legend_handles:  # opaque even if the first bin is faint
        if handle is not None:
            handle.set_alpha(1)
    return figure


def _calibration_error(bins: CalibrationBins) -> float:
    return float(np.abs(bins.correct - bins.confidence).sum() / bins.images.sum())


def _draw_accuracy(axes: Axes, bins: CalibrationBins) -> None:
    filled = bins.images > 0
    images = bins.images[filled]
    accuracy, confidence = bins.correct[filled] / images, bins.confidence[filled] / images
    left, width = bins.edges[:-1][filled], np.diff(bins.edges)[filled]
    bars = axes.bar(
        left, accuracy, width, align="edge", color=_COLOURS[5], edgecolor="white", label="accuracy"
    )
    gaps = axes.bar(
        left, confidence - accuracy, width, accuracy, align="edge", fill=False, hatch="///",
        edgecolor=_COLOURS[1], linewidth=0.8, label="gap to the mean top probability",
    )  # fmt: skip
    for pair, count in zip(zip(bars, gaps, strict=True), images, strict=True):
        for bar in pair:
            bar.set_alpha(_FAINT if count < _FEWEST_IN_BIN else 1)
    axes.plot([0, 1], [0, 1], "--", color="#555555", label="perfect calibration")


def confusion_chart(counts: Ints, classes: tuple[str, ...], title: str) -> Figure:
    """A confusion matrix, shaded by the share of the true label's images.

    `counts` is (classes, classes), one row for each true label. With more than 20 classes the cells
    have no text.
    """
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    labelled = len(classes) <= 20
    side = 2.5 + max(1.8, 0.6 * len(classes)) if labelled else 9.0
    longer = 0.07 * max(0, max(map(len, classes)) - 12) if labelled else 0.0
    figure = _figure(side + 1.2 + longer, side + longer, title)
    axes = figure.subplots()
    shade = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    bar = figure.colorbar(shade, format=PercentFormatter(1), shrink=0.8)
    bar.set_label("share of the true label's images")
    label = "label" if labelled else "label (class index)"
    axes.set(xlabel=f"predicted {label}", ylabel=f"true {label}")
    if labelled:
        ticks = range(len(classes))
        images = counts.sum(axis=1)
        axes.set_xticks(ticks, classes, parse_math=False)
        for text in axes.get_xticklabels():
            text.set(rotation=45, ha="right", rotation_mode="anchor")
        rows = [f"{n} ({k:,})" for n, k in zip(classes, images, strict=True)]
        axes.set_yticks(ticks, rows, parse_math=False)
        for (row, column), count in np.ndenumerate(counts):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour)
    return figure


def risk_coverage_chart(curves: Mapping[str, Sequence[RiskCoverage]], title: str) -> Figure:
    """Selective risk against coverage, one line for each name: the mean over its runs.

    The curves are of one resample.
    """
    figure = _figure(6.4, 4.8, title)
    axes = figure.subplots()
    styles = cycle(_LINES)
    for (name, runs), colour, style in zip(curves.items(), cycle(_COLOURS), styles, strict=False):
        areas = {
            key: np.mean([selective_metrics(curve)[key].item() for curve in runs])
            for key in ("aurc", "augrc")
        }
        coverage = runs[0].coverage[0]
        risk = np.mean([np.interp(coverage, c.coverage[0], c.risk[0]) for c in runs], axis=0)
        label = f"{name}: AURC {areas['aurc']:.3f}, AUGRC {areas['augrc']:.3f}"
        axes.plot(coverage, risk, style, color=colour, label=label)
    axes.set(
        xlim=(0, 1), xlabel="coverage: share of images accepted, highest MSP first",
        ylabel="selective risk: share of wrong labels",
    )  # fmt: skip
    # At very low coverage one error is a risk of up to 100%; it must not set the scale.
    highest = [
        curve.risk[curve.coverage >= 0.02].max() for runs in curves.values() for curve in runs
    ]
    axes.set_ylim(0, min(1.02, max(0.01, *(1.15 * risk for risk in highest))))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center")
    return figure


def reliability_chart(calibration: Mapping[str, Sequence[CalibrationBins]], title: str) -> Figure:
    """Accuracy against the mean top probability of each bin, one line for each name.

    The bins of several runs of a name are added, and its ECE is their mean. Bins of fewer than 10
    images, in the mean of the runs, are faint, and the axis says so.
    """
    figure = _figure(6.4, 5.6, title)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], linewidth=0.8, color="black", alpha=0.5)
    fainter = ""
    for (name, runs), colour, style in zip(
        calibration.items(), cycle(_COLOURS), cycle(_LINES), strict=False
    ):
        images, correct, confidence = (
            np.sum([getattr(bins, of) for bins in runs], axis=0)
            for of in ("images", "correct", "confidence")
        )
        error = np.mean([_calibration_error(bins) for bins in runs])
        filled = images > 0
        points = np.stack([confidence, correct])[:, filled] / images[filled]
        few = images[filled] < _FEWEST_IN_BIN * len(runs)  # which have the same images
        if few.any():
            fainter = f" (faint: bins of fewer than {_FEWEST_IN_BIN} images)"
            axes.plot(*points, style, marker=".", color=colour, alpha=_FAINT)
        axes.plot(
            *points[:, ~few], style, marker=".", color=colour, label=f"{name}: ECE {error:.3f}"
        )
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=f"mean top probability{fainter}", ylabel="accuracy")
    axes.grid(alpha=0.3)
    _legend_below(figure)
    return figure


def roc_chart(
    scores: Mapping[str, Mapping[str, Sequence[tuple[Floats, Floats]]]], title: str
) -> Figure:
    """ROC of a score by set, side by side, one line for each name: the mean over its runs.

    Args:
        scores: By set and name, for each run the scores of the test part, which is positive, (n,),
            and of the set, (m,), high in distribution.
        title: Of the figure.
    """
    figure = _figure(0.6 + 3.8 * max(len(scores), 1.4), 5.2, title)
    grid = np.linspace(0, 1, 201)
    panels = figure.subplots(1, len(scores), sharey=True, squeeze=False)[0]
    for axes, (name_of_set, by_name) in zip(panels, scores.items(), strict=True):
        axes.plot([0, 1], [0, 1], linewidth=0.8, color="black", alpha=0.5)
        for (name, runs), colour, style in zip(
            by_name.items(), cycle(_COLOURS), cycle(_LINES), strict=False
        ):
            curves = []
            for inside, outside in runs:
                positive = np.arange(len(inside) + len(outside)) < len(inside)
                fpr, tpr, _ = roc_curve(positive, np.concatenate([inside, outside]))
                curves.append(np.interp(grid, fpr, tpr))
            axes.plot([0, *grid], [0, *np.mean(curves, axis=0)], style, color=colour, label=name)
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), xlabel="false positive rate")
        axes.set_title(name_of_set, fontsize=10, parse_math=False)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("true positive rate")
    _legend_below(figure)
    return figure


def score_histograms(
    inside: Floats,
    outside: Mapping[str, Floats],
    score: ScoreName,
    threshold: float | None,
    title: str,
) -> Figure:
    """Histograms of an OOD score in the test part and in other sets.

    `inside` is (n,), `outside` (m,) by name of the set. Images below an MSP of `threshold`, or
    above this value of another score, are flagged; None draws no threshold.
    """
    figure = _figure(6.4, 4.8, title)
    axes = figure.subplots()
    low, high = 0.0, 1.0
    if score != "msp":
        everything = np.concatenate([inside, *outside.values()])
        low, high = float(everything.min()), float(np.percentile(everything, 99))
    edges: list[float] = np.linspace(low, high, 41).tolist()
    axes.hist(
        inside, edges, weights=np.full(len(inside), 1 / len(inside)), color=_COLOURS[0],
        alpha=0.4, label=f"test part ({len(inside):,} images)",
    )  # fmt: skip
    styles = cycle(_LINES)
    for (name, values), colour, style in zip(
        outside.items(), cycle(_COLOURS[1:]), styles, strict=False
    ):
        weights = np.full(len(values), 1 / len(values))
        axes.hist(
            np.minimum(values, edges[-1]), edges, weights=weights, histtype="step", color=colour,
            linestyle=style, linewidth=1.8, label=f"{name} ({len(values):,} images)",
        )  # fmt: skip
    if threshold is not None:
        side = "below" if score == "msp" else "above"
        label = f"flagged {side} {threshold:.3f}"
        axes.axvline(threshold, linewidth=1.2, color="black", label=label)
    axes.set(xlim=(edges[0], edges[-1]), xlabel=_SCORE_AXES[score], ylabel="share of the images")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def threshold_chart(
    curves: Mapping[str, Mapping[str, Floats]],
    thresholds: Floats,
    marks: Mapping[str, float],
    title: str,
) -> Figure:
    """Shares of units over the threshold on a probability, side by side, with their intervals.

    Args:
        curves: By set of images, with its unit, and name of the share, (n, 3): share, lower and
            upper limit.
        thresholds: (n,)
        marks: Thresholds to mark, by name.
        title: Of the figure.
    """
    names = list(next(iter(curves.values())))
    figure = _figure(0.6 + 3.6 * len(names), 4.2, title)
    for axes, name in zip(figure.subplots(1, len(names), sharey=True), names, strict=True):
        for (images, of_set), colour, style in zip(
            curves.items(), cycle(_COLOURS), cycle(_LINES), strict=False
        ):
            share, low, high = of_set[name].T
            axes.plot(thresholds, share, style, color=colour, label=images)
            axes.fill_between(thresholds, low, high, color=colour, alpha=0.15, linewidth=0)
        for mark, threshold in marks.items():
            axes.axvline(threshold, color="black", linewidth=0.8)
            axes.text(threshold, 0.02, f" {mark}", fontsize=8)
        axes.set(xscale="log", xlim=(thresholds[0], 1), ylim=(0, 1.01), title=name)
        axes.set_xlabel("threshold")
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def class_curves(probabilities: Floats, labels: Ints, classes: Sequence[str], title: str) -> Figure:
    """ROC and precision-recall curves of each class against the others.

    A class without images, or without others, has none. `probabilities` are (n, classes), `labels`
    (n,).
    """
    labelled = len(classes) <= _LABELLED
    figure = _figure(8.4, 5.2 + 0.11 * labelled * len(classes), title)
    roc, precision_recall = figure.subplots(1, 2)
    for index, (name, colour, style) in enumerate(
        zip(classes, cycle(_COLOURS), cycle(_LINES), strict=False)
    ):
        positive, scores = labels == index, probabilities[:, index]
        if not 0 < positive.sum() < len(labels):
            continue
        fpr, tpr, _ = roc_curve(positive, scores, drop_intermediate=True)
        precision, recall, _ = precision_recall_curve(positive, scores, drop_intermediate=True)
        look: dict[str, Any] = {"color": "#777777", "linewidth": 0.5}
        if labelled:
            average = average_precision_score(positive, scores)
            shown = f" {name}" if name.startswith("_") else name  # a legend leaves out _names
            label = f"{shown} ({positive.sum():,}): AUROC {auc(fpr, tpr):.3f}, AP {average:.3f}"
            look = {"color": colour, "linestyle": style, "label": label}
        roc.plot(fpr, tpr, **look)
        precision, recall = precision[recall > 0], recall[recall > 0]
        precision_recall.plot(
            [*recall, 0], [*precision, precision[-1]], drawstyle="steps-post", **look
        )
    roc.plot([0, 1], [0, 1], linewidth=0.8, color="black", alpha=0.5)
    roc.set(
        xlabel="false positive rate",
        ylabel="true positive rate",
        title=f"ROC, {len(classes)} classes",
    )
    precision_recall.set(xlabel="recall", ylabel="precision", title="precision-recall")
    for axes in (roc, precision_recall):
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
        axes.grid(alpha=0.3)
    if labelled:
        handles = roc.get_legend_handles_labels()
        legend = figure.legend(*handles, loc="outside lower center", ncols=2, fontsize=9)
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


def learning_curves(training: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """The training loss of each member by epoch, and what was measured on a validation part.

    `training` has the facts of the checkpoints' provenance, some with `loss_by_epoch`,
    `validation_by_epoch` and `best_epoch`.
    """
    images = [facts["validation_images"] for facts in training if "validation_by_epoch" in facts]
    panels: dict[str, str | None] = {"loss": None}
    if images:
        of = f"{images[0]:,} validation images"
        panels |= {f"accuracy, {of}": "accuracy", f"ECE, {of}": "ece"}
    figure = _figure(1.2 + 3.6 * max(len(panels), 1.5), 4.2, title)
    by_panel = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (name, metric) in zip(by_panel, panels.items(), strict=True):
        axes.set(xlabel="epoch", ylabel=name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        for number, facts in enumerate(training):
            curves = {
                f"validation NLL, {mode}" if metric is None else mode: of_mode[metric or "nll"]
                for mode, of_mode in facts.get("validation_by_epoch", {}).items()
            }
            if metric is None:
                curves = {
                    "training loss, augmented images": facts.get("loss_by_epoch", [])
                } | curves
            first = 0 if metric is None else 1  # a mode has one colour and line in all panels
            for (label, values), colour, style in zip(
                curves.items(), _COLOURS[first:], _LINES[first:], strict=False
            ):
                look = {"color": colour, "marker": ".", "label": None if number else label}
                axes.plot(range(1, len(values) + 1), values, style, **look)
            if "best_epoch" in facts:
                axes.axvline(
                    facts["best_epoch"], color="black", linewidth=0.8,
                    label=None if number else "kept epoch",
                )  # fmt: skip
    figure.legend(*by_panel[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def picture_grid(
    images: EvaluatedSet,
    predictions: Predictions,
    indices: Ints,
    classes: Sequence[str],
    title: str,
) -> Figure:
    """Images at the indices, small, with true label, answer and uncertainty.

    A frame is orange and broken if the answer is wrong, blue if it is right.
    """
    columns = 4
    rows = -(-len(indices) // columns)
    pictures = [to_pil_image(images.images[index].pixels()) for index in indices]
    tallest = min(1.5, max(picture.height / picture.width for picture in pictures))
    figure = _figure(8.4, 1 + (0.8 + 2.05 * tallest) * rows, title)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in grid:
        axes.set(xticks=[], yticks=[])
        axes.set_visible(False)
    for axes, index, picture in zip(grid, indices, pictures, strict=False):
        image = images.images[index]
        picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
        label, right = (
            int(predictions.predicted[index]),
            predictions.predicted[index] == image.label,
        )
        axes.imshow(np.asarray(picture))
        axes.set_visible(True)
        axes.spines[:].set(
            color=_COLOURS[0 if right else 1], linewidth=2, linestyle="-" if right else "--"
        )
        name = printable(image.name)
        name = name if len(name) <= 30 else f"...{name[-27:]}"
        lines = [
            f"{'right' if right else 'wrong'}: {classes[label]}, p {predictions.msp[index]:.2f}",
            f"true: {classes[image.label]}",
            f"entropy {predictions.entropy[index]:.2f}, "
            f"MI {predictions.mutual_information[index]:.3f}",
            name,
        ]
        text = "\n".join(fill(line, 34) for line in lines)
        axes.set_xlabel(text, fontsize=7, parse_math=False)
    return figure


def _legend_below(figure: Figure) -> None:
    """A legend of the first axes, one name a line."""
    legend = figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", fontsize=9
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _figure(width_inches: float, height_inches: float, title: str) -> Figure:
    """An empty figure; its title has lines that fit its width."""
    figure = Figure((width_inches, height_inches), layout="constrained")
    characters = int(width_inches / 0.095)  # of a mean width at this size
    lines = [fill(line, characters) for line in title.splitlines()]
    figure.suptitle("\n".join(lines), fontsize=11, parse_math=False)
    return figure

"""Charts show the data they are given.

Rendered chart files are deterministic and leave matplotlib's global state unchanged.
"""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import average_precision_score, roc_auc_score

from training.evaluation.metrics import calibration_bins, risk_coverage
from training.reporting.charts import (
    class_curves,
    confusion_chart,
    learning_curves,
    reliability_diagram,
    risk_coverage_chart,
    score_histograms,
    threshold_chart,
    write_figure,
)


def test_the_reliability_diagram_has_a_bar_and_a_count_for_every_bin_with_images() -> None:
    first = np.array([0.95, 0.91, 1.0, 0.62, 0.68])
    labels = np.array([0, 1, 0, 0, 0])
    bins = calibration_bins(np.stack([first, 1 - first], axis=1), labels)
    figure = reliability_diagram({"det": bins, "stoch": bins}, "title")
    det, stoch, counts, _ = figure.axes
    assert (det.get_title(), stoch.get_title()) == ("det: ECE 0.312", "stoch: ECE 0.312")
    accuracy, gap = det.containers
    assert [bar.get_x() for bar in accuracy] == pytest.approx([0.6, 0.9])
    assert [bar.get_height() for bar in accuracy] == pytest.approx([1, 2 / 3])
    confidence = [0.65, (0.95 + 0.91 + 1) / 3]
    assert [bar.get_y() + bar.get_height() for bar in gap] == pytest.approx(confidence)
    assert [bar.get_height() for bar in counts.patches] == [0, 0, 0, 0, 0, 0, 2, 0, 0, 3]
    assert [text.get_text() for text in counts.texts] == ["", "", "", "", "", "", "2", "", "", "3"]


def test_the_confusion_chart_shows_counts_on_the_shares_of_each_row() -> None:
    counts = np.array([[3, 1, 0], [0, 0, 0], [1000, 0, 1000]])
    axes = confusion_chart(counts, ("a", "b", "c"), "title").axes[0]
    assert [text.get_text() for text in axes.texts] == [f"{count:,}" for count in counts.flat]
    shares = [[0.75, 0.25, 0], [0, 0, 0], [0.5, 0, 0.5]]
    np.testing.assert_array_equal(axes.images[0].get_array(), shares)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a (4)", "b (0)", "c (2,000)"]


def test_the_risk_coverage_chart_has_one_line_for_each_curve() -> None:
    scores, wrong = np.array([0.9, 0.8, 0.8, 0.6]), np.array([False, True, False, True])
    curves = {
        "det": [risk_coverage(scores, wrong, np.ones((1, 4)))],
        "stoch": [risk_coverage(-scores, wrong, np.ones((1, 4)))],
    }
    figure = risk_coverage_chart(curves, "title")
    (axes,) = figure.axes
    det, stoch = axes.lines
    np.testing.assert_allclose(det.get_xydata(), [[0.25, 0], [0.75, 1 / 3], [1, 0.5]])
    np.testing.assert_allclose(stoch.get_xydata(), [[0.25, 1], [0.75, 2 / 3], [1, 0.5]])


def test_the_histograms_show_shares_of_each_set_and_the_threshold() -> None:
    inside, outside = np.array([1.0, 0.99, 0.5, 0.51]), {"other": np.array([0.3])}
    figure = score_histograms(inside, outside, "msp", 0.4, "title")
    (axes,) = figure.axes
    heights = [patch.get_height() for patch in axes.patches if hasattr(patch, "get_height")]
    assert sum(heights) == pytest.approx(1)
    assert heights[-1] == 0.5
    assert axes.lines[0].get_xdata() == [0.4, 0.4]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert set(names) == {"test part (4 images)", "other (1 images)", "flagged below 0.400"}
    (axes,) = score_histograms(inside, outside, "msp", None, "title").axes
    assert not axes.lines


def test_the_histogram_of_a_distance_ends_near_its_largest_value_and_keeps_all_images() -> None:
    inside, outside = np.linspace(20, 40, 200), {"other": np.array([30.0, 1e6])}
    figure = score_histograms(inside, outside, "feature_distance", 35.0, "title")
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert low == 20
    assert high == pytest.approx(40, abs=1)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "flagged above 35.000" in names
    outline = axes.patches[-1].get_xy()  # of the other set: half of it in the last bin
    assert outline[:, 1].max() == 0.5


def test_the_threshold_chart_has_a_panel_for_each_share_and_a_line_for_each_set() -> None:
    rising = np.array([[0.1, 0.0, 0.2], [0.9, 0.8, 1.0]])
    curves = {name: {"sensitivity": rising, "specificity": rising} for name in ("fit", "test")}
    figure = threshold_chart(curves, np.array([0.01, 0.1]), {"routine": 0.05}, "title")
    left, right = figure.axes
    assert [axes.get_title() for axes in (left, right)] == ["sensitivity", "specificity"]
    for axes in (left, right):
        *lines, mark = axes.lines
        assert [list(line.get_ydata()) for line in lines] == [[0.1, 0.9]] * 2
        assert list(mark.get_xdata()) == [0.05, 0.05]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fit", "test"]


@pytest.mark.parametrize(
    ("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_a_figure_is_written_as_its_suffix_says_and_equal_figures_are_equal(
    suffix: str, magic: bytes, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        figure = Figure((2, 1))
        figure.subplots().plot([1, 2])
        write_figure(figure, tmp_path / f"{name}.{suffix}")
    first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("a", "b"))
    assert first.startswith(magic)
    assert first == second
    assert b"/Type3" not in first  # fonts that publishers refuse
    assert pyplot.get_fignums() == []


@pytest.mark.parametrize(("pictures", "mode"), [(True, "RGB"), (False, "P")])
def test_a_png_has_few_colours_unless_it_shows_a_picture(
    tmp_path: Path, pictures: bool, mode: str
) -> None:
    figure = Figure((2, 1))
    figure.subplots().imshow(np.zeros((4, 4, 3) if pictures else (4, 4)))
    write_figure(figure, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.mode == mode
        assert image.info.keys() <= {"dpi"}  # no date, no software


def test_the_colours_of_a_png_are_those_drawn(tmp_path: Path) -> None:
    figure, drawn = Figure((6, 4)), BytesIO()
    axes = figure.subplots()
    axes.imshow(np.arange(4096).reshape(64, 64))
    for line in range(6):  # short lines on many other colours
        axes.plot([2 * line, 2 * line + 1], [60, 60], color=f"C{line}", linewidth=1)
    write_figure(figure, tmp_path / "a.png")
    figure.savefig(drawn, dpi=120, bbox_inches="tight")
    with Image.open(tmp_path / "a.png") as written, Image.open(drawn) as expected:
        pixels, of_figure = (np.asarray(image.convert("RGB"), int) for image in (written, expected))
    assert np.abs(pixels - of_figure).max() < 20


def test_the_lines_of_a_long_title_are_no_wider_than_the_figure() -> None:
    title = "Confusion, stoch, 4 samples\n" + "a-model on a folder of pictures, labels.csv, " * 3
    figure = confusion_chart(np.eye(2, dtype=np.int64), ("a", "b"), title)
    figure.draw_without_rendering()
    (shown,) = (text for text in figure.texts if "Confusion" in text.get_text())
    assert "".join(shown.get_text().split()) == "".join(title.split())
    assert shown.get_window_extent().width < figure.bbox.width


def test_the_curves_of_a_class_enclose_its_auroc_and_average_precision() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 80)  # no image of the last class
    probabilities = random.dirichlet(np.ones(4), 80).round(1)  # ties
    figure = class_curves(probabilities, labels, "abcd", "title")
    roc, precision_recall = figure.axes
    *curves, _diagonal = roc.lines
    assert len(curves) == len(precision_recall.lines) == 3
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    for k, (curve, other) in enumerate(zip(curves, precision_recall.lines, strict=True)):
        expected = roc_auc_score(labels == k, probabilities[:, k])
        fpr, tpr = curve.get_xydata().T
        assert np.trapezoid(tpr, fpr) == pytest.approx(expected)
        recall, precision = other.get_xydata().T
        average = average_precision_score(labels == k, probabilities[:, k])
        assert -np.diff(recall) @ precision[:-1] == pytest.approx(average)
        assert names[k].endswith(f"AUROC {expected:.3f}, AP {average:.3f}")
    many = class_curves(random.dirichlet(np.ones(13), 80), labels, "abcdefghijklm", "title")
    assert not many.legends


def test_the_learning_curves_show_the_loss_and_what_was_measured_after_each_epoch() -> None:
    (axes,) = learning_curves([{}, {"loss_by_epoch": [3.0, 2.0]}], "title").axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[], [3, 2]]
    facts = {
        "loss_by_epoch": [3.0, 2.0],
        "validation_images": 9,
        "validation_by_epoch": {
            "det": {"nll": [1.0, 2.0], "accuracy": [0.5, 0.6], "ece": [0.2, 0.1]}
        },
        "best_epoch": 1,
    }
    loss, *others = learning_curves([facts], "title").axes
    assert [list(line.get_ydata()) for line in loss.lines[:2]] == [[3, 2], [1, 2]]
    assert list(loss.lines[2].get_xdata()) == [1, 1]
    assert [axes.get_ylabel() for axes in others] == [
        "accuracy, 9 validation images",
        "ECE, 9 validation images",
    ]
    assert [list(axes.lines[0].get_ydata()) for axes in others] == [[0.5, 0.6], [0.2, 0.1]]


@pytest.mark.parametrize("name", ["$100_$200", "_none", "5$"])
def test_names_of_classes_are_text_and_none_is_left_out(name: str) -> None:
    classes, labels = (name, "other"), np.arange(40) % 2
    scores = np.random.default_rng(0).dirichlet((1, 1), 40)
    for figure in (
        confusion_chart(np.array([[3, 1], [2, 4]]), classes, "confusion"),
        class_curves(scores, labels, classes, "curves"),
    ):
        figure.savefig(BytesIO())
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [text.split(" (")[0].strip() for text in shown] == [name, "other"]

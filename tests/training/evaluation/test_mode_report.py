"""Classification results by class."""

import numpy as np

from training.evaluation.intervals import proportion
from training.evaluation.mode_report import class_metrics

CLASSES = ("bkl", "nv", "mel", "df")


def test_hits_are_counted_by_class_with_melanoma_first() -> None:
    predicted = np.array([0, 1, 1, 2, 2, 0, 2])
    labels = np.array([0, 0, 1, 2, 2, 2, 1])
    metrics = class_metrics(predicted, labels, CLASSES)
    assert list(metrics) == ["mel", "bkl", "nv", "df"]
    assert metrics["mel"].sensitivity == proportion(2, 3)
    assert metrics["mel"].specificity == proportion(3, 4)
    assert metrics["mel"].predictive_value == proportion(2, 3)
    assert metrics["nv"].sensitivity == proportion(1, 2)
    assert metrics["nv"].predictive_value == proportion(1, 2)
    assert metrics["df"].specificity == proportion(7, 7)


def test_a_share_of_no_images_is_none() -> None:
    metrics = class_metrics(np.array([0]), np.array([0]), CLASSES)
    assert metrics["df"].sensitivity is None
    assert metrics["df"].predictive_value is None
    assert metrics["bkl"].specificity is None


def test_classes_without_melanoma_keep_their_order() -> None:
    metrics = class_metrics(np.array([0]), np.array([0]), ("red", "green", "blue"))
    assert list(metrics) == ["red", "green", "blue"]

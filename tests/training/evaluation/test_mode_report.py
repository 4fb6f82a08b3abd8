"""Classification results by class."""

import numpy as np

from training.evaluation.mode_report import GroundTruth, class_metrics
from training.metrics.intervals import Proportion

CLASSES = ("bkl", "nv", "mel", "df")


def truth(labels: list[int], clusters: list[int] | None = None) -> GroundTruth:
    indices = np.arange(len(labels)) if clusters is None else np.array(clusters)
    return GroundTruth(np.array(labels), indices, {}, [])


def counts(share: Proportion | None) -> tuple[int, int]:
    assert share is not None
    return share.hits, share.images


def test_hits_are_counted_by_class_with_melanoma_first() -> None:
    predicted = np.array([0, 1, 1, 2, 2, 0, 2])
    metrics = class_metrics(predicted, truth([0, 0, 1, 2, 2, 2, 1]), CLASSES)
    assert list(metrics) == ["mel", "bkl", "nv", "df"]
    assert counts(metrics["mel"].sensitivity) == (2, 3)
    assert counts(metrics["mel"].specificity) == (3, 4)
    assert counts(metrics["mel"].predictive_value) == (2, 3)
    assert counts(metrics["nv"].sensitivity) == (1, 2)
    assert counts(metrics["nv"].predictive_value) == (1, 2)
    assert counts(metrics["df"].specificity) == (7, 7)


def test_images_of_one_lesion_widen_the_intervals_of_its_class() -> None:
    predicted = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 1] * 4)
    labels = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1] * 4
    single = class_metrics(predicted, truth(labels), CLASSES)
    lesions = np.repeat(np.arange(12), 4).tolist()
    for name in ("bkl", "nv"):
        alone = single[name]
        together = class_metrics(predicted, truth(labels, lesions), CLASSES)[name]
        for share, clustered in (
            (alone.sensitivity, together.sensitivity),
            (alone.specificity, together.specificity),
            (alone.predictive_value, together.predictive_value),
        ):
            assert share is not None
            assert clustered is not None
            assert share.clusters == share.images > clustered.clusters
            assert clustered.share == share.share
            assert clustered.high - clustered.low > share.high - share.low


def test_a_share_of_no_images_is_none() -> None:
    metrics = class_metrics(np.array([0]), truth([0]), CLASSES)
    assert metrics["df"].sensitivity is None
    assert metrics["df"].predictive_value is None
    assert metrics["bkl"].specificity is None


def test_classes_without_melanoma_keep_their_order() -> None:
    metrics = class_metrics(np.array([0]), truth([0]), ("red", "green", "blue"))
    assert list(metrics) == ["red", "green", "blue"]

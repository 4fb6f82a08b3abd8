"""Shares of classes, and intervals that an independent test agrees with."""

import numpy as np
import pytest
from scipy.stats import binomtest

from training.evaluation.sensitivity import Proportion, class_figures, proportion

CLASSES = ("bkl", "nv", "mel", "df")


def of(hits: int, images: int) -> Proportion:
    found = proportion(hits, images)
    assert found is not None
    return found


@pytest.mark.parametrize("images", [1, 2, 7, 229])
def test_the_interval_is_the_exact_one_for_every_count_of_hits(images: int) -> None:
    for hits in range(images + 1):
        found = of(hits, images)
        twin = binomtest(hits, images).proportion_ci(confidence_level=0.95, method="exact")
        assert (found.low, found.high) == pytest.approx((twin.low, twin.high), abs=1e-9)
        assert 0 <= found.low <= found.share <= found.high <= 1


def test_at_each_end_of_the_interval_the_tail_has_two_and_a_half_per_cent() -> None:
    found = of(3, 229)
    assert binomtest(3, 229, found.low, "greater").pvalue == pytest.approx(0.025)
    assert binomtest(3, 229, found.high, "less").pvalue == pytest.approx(0.025)


def test_hits_are_counted_by_class_with_melanoma_first() -> None:
    predicted = np.array([0, 1, 1, 2, 2, 0, 2])
    labels = np.array([0, 0, 1, 2, 2, 2, 1])
    found = class_figures(predicted, labels, CLASSES)
    assert list(found) == ["mel", "bkl", "nv", "df"]
    assert found["mel"].sensitivity == of(2, 3)
    assert found["mel"].specificity == of(3, 4)
    assert found["mel"].predictive_value == of(2, 3)
    assert found["nv"].sensitivity == of(1, 2)
    assert found["nv"].predictive_value == of(1, 2)
    assert found["df"].specificity == of(7, 7)


def test_a_share_of_no_images_is_none() -> None:
    found = class_figures(np.array([0]), np.array([0]), CLASSES)
    assert found["df"].sensitivity is None
    assert found["df"].predictive_value is None
    assert found["bkl"].specificity is None


def test_other_classes_keep_their_order() -> None:
    found = class_figures(np.array([0]), np.array([0]), ("red", "green", "blue"))
    assert list(found) == ["red", "green", "blue"]

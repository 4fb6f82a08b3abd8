"""training.sensitivity: shares of classes, and intervals that an independent test agrees with."""

import pytest
import torch
from scipy.stats import binomtest

from training.sensitivity import class_sensitivities, sensitivity

CLASSES = ("bkl", "nv", "mel", "df")


@pytest.mark.parametrize("images", [1, 2, 7, 229])
def test_the_interval_is_the_exact_one_for_every_count_of_hits(images: int) -> None:
    for hits in range(images + 1):
        found = sensitivity(hits, images)
        twin = binomtest(hits, images).proportion_ci(confidence_level=0.95, method="exact")
        assert (found.low, found.high) == pytest.approx((twin.low, twin.high), abs=1e-9)
        assert 0 <= found.low <= found.sensitivity <= found.high <= 1


def test_at_each_end_of_the_interval_the_tail_has_two_and_a_half_per_cent() -> None:
    found = sensitivity(3, 229)
    assert binomtest(3, 229, found.low, "greater").pvalue == pytest.approx(0.025)
    assert binomtest(3, 229, found.high, "less").pvalue == pytest.approx(0.025)


def test_hits_are_counted_by_class_with_melanoma_first() -> None:
    predicted = torch.tensor([0, 1, 1, 2, 2, 0, 2])
    labels = torch.tensor([0, 0, 1, 2, 2, 2, 1])
    found = class_sensitivities(predicted, labels, CLASSES)
    assert list(found) == ["mel", "bkl", "nv", "df"]
    counts = {name: (each.hits, each.images) for name, each in found.items() if each is not None}
    assert counts == {"mel": (2, 3), "bkl": (1, 2), "nv": (1, 2)}


def test_a_class_without_images_has_no_sensitivity() -> None:
    found = class_sensitivities(torch.tensor([0]), torch.tensor([0]), CLASSES)
    assert found["df"] is None
    assert found["mel"] is None


def test_other_classes_keep_their_order() -> None:
    found = class_sensitivities(torch.tensor([0]), torch.tensor([0]), ("red", "green", "blue"))
    assert list(found) == ["red", "green", "blue"]

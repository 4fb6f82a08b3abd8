"""The fitted thresholds agree with counts by hand."""

from dataclasses import replace

import numpy as np
import pytest

from eulerlora.errors import DataError
from tests.training.policy.scored_images import scored
from training.policy.fit import entropy_threshold, fit_policy


@pytest.mark.parametrize(("melanomas", "established"), [(58, False), (59, True)])
def test_59_melanomas_without_a_miss_establish_95_per_cent(
    melanomas: int, established: bool
) -> None:
    actual = fit_policy(scored(melanomas), 0.95)
    assert actual.urgent == 0.5
    assert (actual.melanoma.hits, actual.melanoma.share) == (melanomas, 1.0)
    assert actual.melanoma.established is established


def test_images_and_lesions_are_counted() -> None:
    actual = fit_policy(scored(melanomas=60, malignant=40, others=100), 0.95)
    assert (actual.images, actual.lesions) == (200, 200)
    assert (actual.melanoma_hits, actual.melanoma_images) == (60, 60)


def test_a_lesion_with_one_image_below_the_threshold_is_missed() -> None:
    images = scored(melanomas=100)
    lesions = images.lesions.copy()
    lesions[1] = lesions[0]
    actual = fit_policy(replace(images, lesions=lesions), 0.95)
    assert actual.melanoma.lesions == 99
    assert actual.urgent == 0.502  # one miss is allowed: the lesion of the two lowest images
    assert actual.melanoma.hits == 98
    assert (actual.melanoma_hits, actual.melanoma_images) == (98, 100)


def test_unfamiliar_images_do_not_change_the_fit() -> None:
    images = scored(melanomas=60)
    unfamiliar = np.ones_like(images.unfamiliar)
    assert fit_policy(images, 0.95) == fit_policy(replace(images, unfamiliar=unfamiliar), 0.95)


@pytest.mark.parametrize(("melanomas", "others"), [(0, 10), (0, 0)])
def test_a_fit_needs_melanomas(melanomas: int, others: int) -> None:
    with pytest.raises(DataError, match="melanoma"):
        fit_policy(scored(melanomas, others=others), 0.95)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 0.333, 0.99])
@pytest.mark.parametrize("count", [1, 7, 100, 1001])
def test_the_entropy_threshold_is_the_lowest_that_at_most_the_share_reaches(
    share: float, count: int
) -> None:
    entropy = np.random.default_rng(count).uniform(0, 2, count)
    threshold = entropy_threshold(entropy, share)
    assert (entropy >= threshold).mean() <= share
    assert (entropy >= threshold - 0.001).mean() > share


def test_tied_entropies_are_all_below_the_entropy_threshold() -> None:
    assert entropy_threshold(np.full(100, 1.5), 0.05) == 1.501
    assert entropy_threshold(np.zeros(100), 0.05) == 0.001


def test_the_share_of_uncertain_images_is_measured() -> None:
    images = scored(melanomas=60, others=40)
    entropy = np.arange(100) / 100
    actual = fit_policy(replace(images, entropy=entropy), 0.95, uncertain_share=0.1)
    assert actual.entropy_nats == pytest.approx(0.89, abs=0.001)
    assert actual.uncertain == 0.1

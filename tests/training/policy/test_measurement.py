"""The measured performance of fitted thresholds agrees with counts by hand."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from eulerlora.errors import DataError
from tests.training.policy.scored_images import scored
from training.policy.fit import PolicyFit, fit_policy
from training.policy.measurement import measure_policy


@pytest.fixture(scope="module")
def fit() -> PolicyFit:
    """Thresholds of 0.5 for the malignant probability and of more than 1 nat for the entropy."""
    return fit_policy(scored(melanomas=60), 0.95)


def test_shares_are_counted_over_the_documented_images(fit: PolicyFit) -> None:
    actual = measure_policy(scored(melanomas=60, malignant=40, others=100), fit)
    assert (actual.images, actual.lesions, actual.other_images) == (200, 200, 100)
    assert actual.specificity == 0.5
    assert actual.urgent == (60 + 40 + 50) / 200
    assert actual.unfamiliar == 0
    assert actual.refer == 5 / 200  # each tenth of the 50 images below the threshold
    assert actual.urgent + actual.refer + actual.routine == 1
    assert actual.referral_rate == actual.urgent + actual.refer


def test_a_high_entropy_is_referred(fit: PolicyFit) -> None:
    images = scored(melanomas=60, others=100)
    uncertain = replace(images, entropy=np.full(160, fit.entropy_nats))
    assert measure_policy(uncertain, fit).refer == 50 / 160
    below = replace(images, entropy=np.full(160, np.nextafter(fit.entropy_nats, 0)))
    assert measure_policy(below, fit).refer == 5 / 160


def test_an_unfamiliar_image_is_neither_urgent_nor_missed(fit: PolicyFit) -> None:
    images = scored(melanomas=10, others=90)
    scores = images.scores.copy()
    scores[:3] = 0.1  # below the threshold
    unfamiliar = np.zeros(100, bool)
    unfamiliar[[0, 5, 10, 99]] = True
    actual = measure_policy(replace(images, scores=scores, unfamiliar=unfamiliar), fit)
    melanoma = actual.melanoma
    assert (melanoma.urgent, melanoma.unfamiliar, melanoma.missed) == (6, 2, 2)
    assert melanoma.sensitivity == 0.8
    assert actual.unfamiliar == 4 / 100
    assert actual.urgent == (6 + 45 - 1) / 100  # without one unfamiliar image among the others
    assert actual.specificity == 44 / 90  # 45 are below the threshold, one of them unfamiliar
    shares = (actual.urgent, actual.unfamiliar, actual.refer, actual.routine)
    assert sum(shares) == pytest.approx(1)
    assert actual.referral_rate == pytest.approx(1 - actual.routine)


def test_a_lesion_of_several_images_is_missed_if_one_image_is(fit: PolicyFit) -> None:
    images = scored(melanomas=6)
    scores = images.scores.copy()
    scores[[1, 3]] = 0.1
    unfamiliar = np.zeros(106, bool)
    unfamiliar[[0, 3]] = True
    lesions = images.lesions.copy()
    lesions[:6] = ["a", "a", "b", "b", "c", "c"]  # one missed image; urgent, unfamiliar; urgent
    changed = replace(images, scores=scores, unfamiliar=unfamiliar, lesions=lesions)
    melanoma = measure_policy(changed, fit).melanoma
    assert (melanoma.lesions, melanoma.urgent, melanoma.unfamiliar, melanoma.missed) == (3, 1, 1, 1)
    assert melanoma.reached == 1  # lesion c


def test_an_other_lesion_is_spared_only_if_all_its_images_are(fit: PolicyFit) -> None:
    images = scored(melanomas=1, others=6)
    scores = np.array([0.9, 0.1, 0.9, 0.1, 0.9, 0.1, 0.1])
    unfamiliar = np.array([False, False, False, False, True, False, False])
    lesions = np.array(["m", "a", "a", "b", "b", "c", "c"])  # urgent, unfamiliar, spared
    changed = replace(images, scores=scores, unfamiliar=unfamiliar, lesions=lesions)
    others = measure_policy(changed, fit).others
    assert (others.lesions, others.urgent, others.unfamiliar, others.spared) == (3, 1, 1, 1)
    assert others.reached == 2
    assert others.specificity == pytest.approx(1 / 3)


def test_ranking_uses_images_and_the_probability_of_each_group(fit: PolicyFit) -> None:
    images = scored(melanomas=10, malignant=10, others=100)
    outside = np.zeros(120, bool)
    outside[-20:] = True  # scores of 0.8 and more
    generator = np.random.default_rng(0)
    changed = replace(images, outside=outside, melanoma_scores=generator.random(120))
    actual = measure_policy(changed, fit).ranking
    kept = slice(100)
    expected = {
        "melanoma_auroc": roc_auc_score(changed.melanoma[kept], changed.melanoma_scores[kept]),
        "malignant_auroc": roc_auc_score(changed.malignant[kept], changed.scores[kept]),
    }
    negatives = np.sort(changed.melanoma_scores[10:100])
    limit = negatives[81]  # 81 of 90 are below it, which is 0.9
    expected["melanoma_sensitivity"] = (changed.melanoma_scores[:10] >= limit).mean()
    for name, value in expected.items():
        estimate = actual[name]
        assert estimate is not None
        assert estimate.value == pytest.approx(value)
        assert estimate.low <= value <= estimate.high


def test_malignant_lesions_without_a_class_count_in_no_other_group(fit: PolicyFit) -> None:
    images = scored(melanomas=10, malignant=7, others=20)
    outside = np.zeros(37, bool)
    outside[[10, 11, 35, 36]] = True
    malignant = images.malignant & ~outside
    actual = measure_policy(replace(images, malignant=malignant, outside=outside), fit)
    assert actual.outside is not None
    assert (actual.outside.lesions, actual.outside.urgent) == (4, 4)
    assert (actual.malignant.lesions, actual.others.lesions) == (15, 18)
    assert measure_policy(images, fit).outside is None


def test_the_interval_of_the_sensitivity_is_exact(fit: PolicyFit) -> None:
    images = scored(melanomas=40)
    scores = images.scores.copy()
    scores[:3] = 0
    melanoma = measure_policy(replace(images, scores=scores), fit).melanoma
    expected = binomtest(37, 40).proportion_ci(0.95, "exact")
    assert melanoma.interval == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize(("melanomas", "others"), [(0, 10), (10, 0)])
def test_a_measurement_needs_melanomas_and_other_images(
    fit: PolicyFit, melanomas: int, others: int
) -> None:
    with pytest.raises(DataError, match="melanoma"):
        measure_policy(scored(melanomas, others=others), fit)

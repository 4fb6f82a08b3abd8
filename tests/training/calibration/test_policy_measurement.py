"""The measured performance of a policy agrees with counts by hand, rounded against it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from eulerlora_client.errors import DataError
from tests.training.calibration.policy_inputs import fitted_policy, scored
from training.calibration.policy import PolicyInputs
from training.calibration.policy_measurement import (
    PolicyMeasurement,
    measure_policy,
)

POLICY = fitted_policy()


def measured(images: PolicyInputs) -> PolicyMeasurement:
    return measure_policy(images, POLICY, "other", ("SCC",))


def test_shares_are_counted_over_the_documented_images() -> None:
    actual = measured(scored(critical=60, target=40, others=100))
    assert (actual.evidence.images, actual.evidence.lesions, actual.other_images) == (200, 200, 100)
    assert actual.specificity == 0.5
    assert actual.urgent == (60 + 40 + 50) / 200
    assert actual.unfamiliar == 0
    assert actual.refer == 5 / 200  # each tenth of the 50 images below the threshold
    assert actual.urgent + actual.refer + actual.routine == 1
    assert actual.evidence.referral_rate == pytest.approx(actual.urgent + actual.refer, abs=1e-4)


def test_an_unfamiliar_image_is_neither_urgent_nor_missed() -> None:
    images = scored(critical=10, others=90)
    scores = images.scores.copy()
    scores[:3] = 0.1  # below the threshold
    unfamiliar = np.zeros(100, bool)
    unfamiliar[[0, 5, 10, 99]] = True
    actual = measured(replace(images, scores=scores, unfamiliar=unfamiliar))
    melanoma = actual.evidence.critical
    assert (melanoma.urgent, melanoma.unfamiliar, melanoma.neither) == (6, 2, 2)
    assert melanoma.sensitivity == 0.8
    assert actual.unfamiliar == 4 / 100
    assert actual.urgent == (6 + 45 - 1) / 100  # without one unfamiliar image among the others
    assert actual.specificity == 44 / 90  # 45 are below the threshold, one of them unfamiliar
    shares = (actual.urgent, actual.unfamiliar, actual.refer, actual.routine)
    assert sum(shares) == pytest.approx(1)
    assert actual.evidence.referral_rate == pytest.approx(1 - actual.routine, abs=1e-4)


def test_a_lesion_of_several_images_is_missed_if_one_image_is() -> None:
    images = scored(critical=6)
    scores = images.scores.copy()
    scores[[1, 3]] = 0.1
    unfamiliar = np.zeros(106, bool)
    unfamiliar[[0, 3]] = True
    lesions = images.lesions.copy()
    lesions[:6] = ["a", "a", "b", "b", "c", "c"]  # one missed image; urgent, unfamiliar; urgent
    changed = replace(images, scores=scores, unfamiliar=unfamiliar, lesions=lesions)
    melanoma = measured(changed).evidence.critical
    counts = (melanoma.lesions, melanoma.urgent, melanoma.unfamiliar, melanoma.neither)
    assert (*counts, melanoma.reached) == (3, 1, 1, 1, 1)


def test_an_other_lesion_is_spared_only_if_all_its_images_are() -> None:
    images = replace(
        scored(critical=1, others=6),
        scores=np.array([0.9, 0.1, 0.9, 0.1, 0.9, 0.1, 0.1]),
        unfamiliar=np.array([False, False, False, False, True, False, False]),
        lesions=np.array(["m", "a", "a", "b", "b", "c", "c"]),  # urgent, unfamiliar, spared
    )
    others = measured(images).evidence.others
    counts = (others.lesions, others.urgent, others.unfamiliar, others.neither, others.reached)
    assert (counts, others.specificity) == ((3, 1, 1, 1, 2), 0.3333)


def test_ranking_uses_images_and_the_probability_of_each_group() -> None:
    images = scored(critical=10, target=10, others=100)
    outside = np.zeros(120, bool)
    outside[-20:] = True  # scores of 0.8 and more
    generator = np.random.default_rng(0)
    changed = replace(images, outside=outside, critical_scores=generator.random(120))
    actual = measured(changed).ranking
    kept = slice(100)
    expected = {
        "critical_auroc": roc_auc_score(changed.critical[kept], changed.critical_scores[kept]),
        "target_auroc": roc_auc_score(changed.target[kept], changed.scores[kept]),
    }
    negatives = np.sort(changed.critical_scores[10:100])
    limit = negatives[81]  # 81 of 90 are below it, which is 0.9
    expected["critical_sensitivity"] = (changed.critical_scores[:10] >= limit).mean()
    for name, value in expected.items():
        estimate = actual[name]
        assert estimate is not None
        assert estimate.value == pytest.approx(value)
        assert estimate.low <= value <= estimate.high


def test_target_lesions_without_a_class_count_in_no_other_group() -> None:
    images = scored(critical=10, target=7, others=20)
    outside = np.zeros(37, bool)
    outside[[10, 11, 35, 36]] = True
    inside = images.target & ~outside
    actual = measured(replace(images, target=inside, outside=outside))
    assert actual.evidence.outside is not None
    assert actual.evidence.outside.lesions == actual.evidence.outside.urgent == 4
    assert (actual.evidence.target.lesions, actual.evidence.others.lesions) == (15, 18)
    assert measured(images).evidence.outside is None


def test_the_interval_of_the_sensitivity_is_exact() -> None:
    images = scored(critical=40)
    scores = images.scores.copy()
    scores[:3] = 0
    melanoma = measured(replace(images, scores=scores)).evidence.critical
    expected = binomtest(37, 40).proportion_ci(0.95, "exact")
    assert melanoma.sensitivity_low == math.floor(expected.low * 1e4) / 1e4
    assert melanoma.sensitivity_high == math.ceil(expected.high * 1e4) / 1e4


@pytest.mark.parametrize(("critical", "others"), [(0, 10), (10, 0)])
def test_a_measurement_needs_critical_and_other_images(critical: int, others: int) -> None:
    with pytest.raises(DataError, match="critical"):
        measured(scored(critical, others=others))

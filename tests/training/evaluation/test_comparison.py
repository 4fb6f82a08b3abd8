"""Paired differences: intervals over seeds and images, and Holm's correction."""

import numpy as np
import pytest
from scipy import stats

from training.evaluation.comparison import detectable, endpoint_result, holm
from training.evaluation.intervals import resampled


def result(values: np.ndarray, lesions: np.ndarray):
    """The tested mean of per-image differences (seeds, n)."""
    of_arm = np.stack(
        [
            resampled(lambda w, row=row: {"mean": (w @ row) / w.sum(axis=1)}, lesions)["mean"]
            for row in values
        ]
    )
    return endpoint_result("nll", "a", "b", of_arm, np.zeros_like(of_arm))


def test_differences_that_images_share_have_the_t_interval_of_the_seeds() -> None:
    by_seed = np.array([0.1, 0.3, 0.2, 0.25, 0.05])
    tested = result(np.repeat(by_seed[:, None], 30, axis=1), np.arange(30))
    expected = stats.ttest_1samp(by_seed, 0)
    interval = expected.confidence_interval(0.95)
    assert tested.p == pytest.approx(expected.pvalue)
    assert (tested.low, tested.high) == pytest.approx((interval.low, interval.high))
    assert tested.difference == pytest.approx(by_seed.mean())
    assert tested.by_seed == pytest.approx(tuple(by_seed))
    assert tested.same_sign == 5


def test_differences_that_seeds_share_have_the_error_of_the_lesion_means() -> None:
    random = np.random.default_rng(1)
    by_lesion = random.normal(0.1, 1, 200)
    tested = result(np.tile(np.repeat(by_lesion, 3), (5, 1)), np.repeat(np.arange(200), 3))
    assert tested.seeds_error == pytest.approx(0, abs=1e-12)
    assert tested.images_error == pytest.approx(by_lesion.std(ddof=1) / 200**0.5, rel=0.08)
    reach = stats.t.ppf(0.975, 1000 - 1) * tested.images_error
    assert tested.high - tested.difference == pytest.approx(reach)


def test_intervals_cover_the_mean_over_new_seeds_and_new_lesions() -> None:
    random, covered, rejected = np.random.default_rng(2), 0, 0
    trials, seeds, lesions = 300, 5, 40
    for _ in range(trials):
        seed_effects = random.normal(0, 0.2, (seeds, 1))
        values = seed_effects + random.normal(0, 1, lesions) + random.normal(0, 0.5, (5, lesions))
        weights = random.multinomial(lesions, [1 / lesions] * lesions, 200)
        resamples = np.concatenate([np.ones((1, lesions)), weights]) @ values.T / lesions
        tested = endpoint_result("nll", "a", "b", resamples.T, np.zeros_like(resamples.T))
        covered += tested.low <= 0 <= tested.high
        rejected += tested.p < 0.05
    assert covered / trials >= 0.93  # 0.95 - 1.6 standard errors
    assert rejected == trials - covered


def test_holm_rejects_what_its_step_down_procedure_rejects() -> None:
    p_values = [0.01, 0.04, 0.03, 0.005, 0.8, 0.01]
    adjusted = holm(p_values)
    assert adjusted == pytest.approx([0.05, 0.09, 0.09, 0.03, 0.8, 0.05])
    for level in np.linspace(0.001, 0.999, 200):
        rejected = set()
        for step, index in enumerate(np.argsort(p_values, kind="stable")):
            if p_values[index] > level / (len(p_values) - step):
                break
            rejected.add(int(index))
        assert {index for index, p in enumerate(adjusted) if p <= level} == rejected
    assert holm([]) == []


@pytest.mark.parametrize(("seeds", "tests"), [(3, 1), (5, 1), (5, 44), (40, 44)])
def test_the_detectable_difference_is_significant_with_the_stated_power(
    seeds: int, tests: int
) -> None:
    """The reference is the noncentral t distribution. Lesions add no variance here."""
    by_seed = np.linspace(-1, 1, seeds)
    resamples = np.repeat(by_seed[:, None], 10, axis=1)
    endpoint = endpoint_result("nll", "arm", "minus", resamples, np.zeros_like(resamples))
    error = by_seed.std(ddof=1) / np.sqrt(seeds)
    critical = stats.t.isf(0.025 / tests, seeds - 1)
    power = stats.nct.sf(critical, seeds - 1, detectable(endpoint, tests) / error)
    assert power == pytest.approx(0.8, abs=1e-4)


def test_runs_with_other_seeds_have_the_interval_of_welch() -> None:
    """Without variance over images the reference is Welch's t test of SciPy."""
    first, second = np.array([0.5, 0.7, 0.9, 0.6]), np.array([0.4, 0.1, 0.2])
    of_arm, of_minus = (np.repeat(of[:, None], 10, axis=1) for of in (first, second))
    tested = endpoint_result("nll", "a", "b", of_arm, of_minus, paired=False)
    expected = stats.ttest_ind(first, second, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert tested.p == pytest.approx(expected.pvalue)
    assert (tested.low, tested.high) == pytest.approx((interval.low, interval.high))
    assert tested.by_seed == ()


def test_a_single_run_has_the_error_of_the_images_alone() -> None:
    values = np.random.default_rng(3).normal(0.1, 1, 200)
    of_arm = resampled(lambda w: {"mean": (w @ values) / w.sum(axis=1)}, np.arange(200))["mean"]
    several = np.stack([of_arm, of_arm + 0.3, of_arm - 0.1])
    for minus in (np.zeros_like(of_arm)[None], several):
        tested = endpoint_result("nll", "a", "b", of_arm[None], minus, paired=len(minus) == 1)
        assert tested.seeds_error == 0

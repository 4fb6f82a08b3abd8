"""Intervals of metrics by bootstrap and of proportions, with and without clusters."""

import numpy as np
import pytest
from scipy.stats import beta, binomtest, t
from scipy.stats import bootstrap as scipy_bootstrap

from training.evaluation.intervals import (
    bootstrap,
    lower_bound,
    proportion,
    tolerance_bound,
    tolerance_sample_size,
)


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.average(np.broadcast_to(values, weights.shape), axis=1, weights=weights)


def mean_of(values: np.ndarray, *clusters: np.ndarray):
    return bootstrap(lambda weights: {"mean": weighted_mean(values, weights)}, *clusters)["mean"]


def test_intervals_without_clusters_agree_with_scipy() -> None:
    values = np.random.default_rng(3).exponential(size=200)
    estimate = mean_of(values, np.arange(200))
    reference = scipy_bootstrap((values,), np.mean, n_resamples=5_000, method="percentile", rng=0)
    assert estimate.value == pytest.approx(values.mean())
    low, high = reference.confidence_interval
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=0.1 * (high - low))


def test_images_of_a_cluster_are_resampled_together() -> None:
    """Copies add no information: the interval equals that of one image per cluster."""
    values = np.random.default_rng(4).normal(size=50)
    single = mean_of(values, np.arange(50))
    copied = mean_of(np.repeat(values, 4), np.repeat(np.arange(50), 4))
    unclustered = mean_of(np.repeat(values, 4), np.arange(200))
    assert (copied.low, copied.high) == pytest.approx((single.low, single.high))
    assert unclustered.high - unclustered.low < 0.6 * (copied.high - copied.low)


def test_sets_are_resampled_independently_with_their_number_of_clusters() -> None:
    seen: list[np.ndarray] = []

    def record(weights: np.ndarray) -> dict[str, np.ndarray]:
        seen.append(weights)
        return {"none": np.zeros(len(weights))}

    clusters = np.array([0, 1, 1, *range(2, 20)])
    bootstrap(record, clusters, np.arange(25), np.arange(25))
    assert seen[0].tolist() == [[1] * 71]
    drawn = np.concatenate(seen[1:])
    assert len(drawn) == 1000
    assert (drawn[:, 1] == drawn[:, 2]).all()
    assert (np.delete(drawn[:, :21], 2, axis=1).sum(axis=1) == 20).all()
    first, second = drawn[:, 21:46], drawn[:, 46:]
    assert (first.sum(axis=1) == 25).all()
    assert (second.sum(axis=1) == 25).all()
    assert drawn.std(axis=0).min() > 0.5
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.1


def test_an_undefined_metric_is_none_and_undefined_resamples_are_ignored() -> None:
    def metrics(weights: np.ndarray) -> dict[str, np.ndarray]:
        chosen = (weights * (np.arange(weights.shape[1]) < 2)).sum(axis=1)
        constant = np.where(chosen > 0, 1.0, np.nan)
        return {"undefined": np.full(len(weights), np.nan), "rarely": constant}

    for images in (6, 30):
        estimates = bootstrap(metrics, np.arange(images))
        assert estimates["undefined"] is None
        rarely = estimates["rarely"]  # no interval from a constant value
        assert (rarely.value, rarely.low, rarely.high) == (1, None, None)


@pytest.mark.parametrize(("clusters", "has_interval"), [(19, False), (20, True)])
def test_few_clusters_have_no_bootstrap_interval(clusters: int, has_interval: bool) -> None:
    estimate = mean_of(np.arange(40.0), np.arange(40) % clusters)
    assert estimate.value == 19.5
    assert (estimate.low is not None) is has_interval


@pytest.mark.parametrize(("positive", "has_interval"), [(19, False), (20, True), (181, False)])
def test_a_few_compared_images_have_no_bootstrap_interval(
    positive: int, has_interval: bool
) -> None:
    values, chosen = np.arange(200.0), np.arange(200) < positive

    def metrics(weights: np.ndarray) -> dict[str, np.ndarray]:
        return {"all": weighted_mean(values, weights), "apart": weighted_mean(values, weights)}

    estimates = bootstrap(metrics, np.arange(200), compared={"apart": chosen})
    apart, of_all = estimates["apart"], estimates["all"]
    assert apart.value == of_all.value
    assert (apart.low is not None) is has_interval
    assert of_all.low is not None


@pytest.mark.parametrize("units", [1, 2, 58, 59, 123])
def test_the_lower_bound_agrees_with_scipy_for_every_count(units: int) -> None:
    for hits in range(units + 1):
        expected = binomtest(hits, units, alternative="greater").proportion_ci(0.95, "exact").low
        assert lower_bound(hits, units) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("share", [0.5, 0.8, 0.9, 0.95, 0.99])
def test_one_more_miss_than_allowed_is_below_the_bound(share: float) -> None:
    minimum = tolerance_sample_size(share)
    fewer = tolerance_bound(np.arange(minimum - 1.0), share)
    assert (fewer.misses, fewer.lower_bound < share) == (0, True)
    for units in (minimum, minimum + 1, 2 * minimum, 500):
        misses = tolerance_bound(np.arange(float(units)), share).misses
        assert lower_bound(units - misses, units) >= share > lower_bound(units - misses - 1, units)


@pytest.mark.parametrize("units", [20, 59, 93, 200, 747])
def test_the_stated_confidence_of_a_threshold_holds(units: int) -> None:
    """At least 95% of new units reach a threshold in the stated share of the runs."""
    values = np.random.default_rng(units).random((1000, units))  # uniform: P(below t) = t
    bounds = [tolerance_bound(run, 0.95) for run in values]
    held = np.mean([bound.threshold <= 0.05 for bound in bounds])
    assert held == pytest.approx(bounds[0].confidence, abs=4 * np.sqrt(0.05 / 1000))


def independent(hits: int, images: int):
    return proportion(np.arange(images) < hits, np.arange(images))


@pytest.mark.parametrize("images", [1, 2, 7, 229])
def test_without_clusters_the_interval_of_a_proportion_agrees_with_scipy(images: int) -> None:
    for hits in range(images + 1):
        actual = independent(hits, images)
        reference = binomtest(hits, images).proportion_ci(confidence_level=0.95, method="exact")
        assert (actual.low, actual.high) == pytest.approx((reference.low, reference.high), abs=1e-9)
        assert 0 <= actual.low <= actual.share <= actual.high <= 1
        assert (actual.hits, actual.images, actual.clusters) == (hits, images, images)


def test_a_proportion_of_no_images_is_none() -> None:
    assert proportion(np.array([], dtype=bool), np.array([], dtype=np.int64)) is None


def test_clusters_of_one_size_have_the_effective_number_of_their_means() -> None:
    """For clusters of one size the Taylor variance is that of the mean of their means."""
    clusters = np.repeat(np.arange(30) * 7, 4)
    hits = np.random.default_rng(6).random(30)[clusters // 7] < np.linspace(0.1, 0.9, 120)
    actual = proportion(hits, clusters)
    share, variance = hits.mean(), hits.reshape(30, 4).mean(axis=1).var(ddof=1) / 30
    images = share * (1 - share) / variance * 120 / 119
    images *= (t.ppf(0.975, 119) / t.ppf(0.975, 29)) ** 2
    assert 20 < images < 110
    hits_of, misses_of = images * share, images * (1 - share)
    low = beta.ppf(0.025, hits_of, misses_of + 1)
    high = beta.ppf(0.975, hits_of + 1, misses_of)
    assert (actual.low, actual.high) == pytest.approx((low, high))
    assert (actual.hits, actual.images, actual.clusters) == (hits.sum(), 120, 30)


def test_clusters_that_vary_less_than_independent_images_do_not_narrow_the_interval() -> None:
    balanced = proportion(np.arange(80) % 2 == 0, np.arange(80) // 2)
    single = independent(40, 80)
    assert balanced.low < single.low < single.high < balanced.high
    assert (balanced.low, balanced.high) == pytest.approx((single.low, single.high), abs=0.01)


@pytest.mark.parametrize("hit", [False, True])
def test_without_a_miss_or_a_hit_each_cluster_counts_once(hit: bool) -> None:
    actual = proportion(np.full(100, hit), np.arange(100) // 5)
    expected = independent(20 * hit, 20)
    assert (actual.low, actual.high) == (expected.low, expected.high)


@pytest.mark.parametrize("share", [0.8, 0.95])
def test_the_interval_of_a_proportion_covers_clustered_data_where_the_binomial_does_not(
    share: float,
) -> None:
    """One to six images of each of 60 lesions; all images of a lesion are hits or none is."""
    random = np.random.default_rng(7)
    repeats = 400
    covered = np.zeros(2)
    for _ in range(repeats):
        clusters = np.repeat(np.arange(60), random.choice([1, 2, 3, 6], 60, p=[0.6, 0.2, 0.1, 0.1]))
        actual = proportion(random.random(60)[clusters] < share, clusters)
        naive = independent(actual.hits, actual.images)
        covered += [one.low <= share <= one.high for one in (actual, naive)]
    least = 0.95 - 3 * np.sqrt(0.95 * 0.05 / repeats)
    assert covered[0] / repeats > least
    assert covered[1] / repeats < 0.88

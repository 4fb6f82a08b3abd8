"""Intervals that cover, and clusters that stay together."""

import numpy as np
import pytest
from scipy.stats import bootstrap, norm

from training.evaluation.intervals import (
    Estimate,
    Floats,
    Weights,
    estimates,
    numbered,
    once,
    share,
)
from training.evaluation.metrics import mean


def mean_of(values: Floats, *samples: np.ndarray) -> Estimate:
    found = estimates(lambda weights: {"mean": mean(values, weights)}, *samples)["mean"]
    assert found is not None
    return found


def test_without_clusters_it_is_scipy_s_percentile_bootstrap() -> None:
    values = np.random.default_rng(3).exponential(size=200)
    found = mean_of(values, np.arange(200))
    twin = bootstrap((values,), np.mean, n_resamples=5_000, method="percentile", rng=0)
    assert found.value == pytest.approx(values.mean())
    low, high = twin.confidence_interval
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.1 * (high - low))


def test_images_of_a_cluster_are_drawn_together() -> None:
    """Copies tell nothing new: with them the interval is that of one image of each cluster."""
    values = np.random.default_rng(4).normal(size=50)
    alone = mean_of(values, np.arange(50))
    copied = mean_of(np.repeat(values, 4), np.repeat(np.arange(50), 4))
    apart = mean_of(np.repeat(values, 4), np.arange(200))
    assert (copied.low, copied.high) == pytest.approx((alone.low, alone.high))
    assert apart.high - apart.low < 0.6 * (copied.high - copied.low)


def test_it_covers_the_truth_of_clustered_data_as_often_as_it_says() -> None:
    random = np.random.default_rng(5)
    clusters = np.repeat(np.arange(100), 3)
    covered = []
    for _ in range(100):
        values = random.normal(size=100)[clusters] + random.normal(size=300)
        found = mean_of(values, clusters)
        covered.append(found.low <= 0 <= found.high)
    chance = norm.sf((0.95 - np.mean(covered)) / np.sqrt(0.95 * 0.05 / 100))
    assert chance > 1e-4


def test_the_weights_are_whole_and_keep_the_number_of_clusters() -> None:
    seen: list[Weights] = []

    def keep(weights: Weights) -> dict[str, Floats]:
        seen.append(weights)
        return {"none": np.zeros(len(weights))}

    clusters = np.array([0, 1, 1, 2])
    estimates(keep, clusters, np.arange(5))
    assert (seen[0] == once(9)).all()
    drawn = np.concatenate(seen[1:])
    assert len(drawn) == 1000
    assert (drawn[:, 1] == drawn[:, 2]).all()
    assert (drawn[:, [0, 1, 3]].sum(axis=1) == 3).all()
    assert (drawn[:, 4:].sum(axis=1) == 5).all()
    assert drawn.std(axis=0).min() > 0.5


def test_the_same_question_has_the_same_interval() -> None:
    values = np.arange(30.0)
    assert mean_of(values, np.arange(30)) == mean_of(values, np.arange(30))


def test_a_figure_that_is_not_a_number_is_none_and_such_resamples_are_left_out() -> None:
    positive = np.arange(6) < 2

    def figures(weights: Weights) -> dict[str, Floats]:
        chosen = (weights * positive).sum(axis=1)
        return {"undefined": np.full(len(weights), np.nan), "rarely": share(chosen, chosen)}

    assert estimates(figures, np.arange(6)) == {"undefined": None, "rarely": Estimate(1, 1, 1)}


def test_clusters_are_numbered_by_name() -> None:
    assert numbered(["b", "a", "b", "c"]).tolist() == [1, 0, 1, 2]

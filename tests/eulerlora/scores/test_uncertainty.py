"""Uncertainty of means over trajectories and their standard errors."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Generator, Tensor

from eulerlora.sampling.adaptive import ROUNDS
from eulerlora.scores.uncertainty import (
    INTERVAL_ERRORS,
    REPEATED_Z,
    standard_errors,
    student_t_quantile,
    summarise,
    variance_of,
)


def random_trajectories(images: int = 50, count: int = 7, classes: int = 5) -> Tensor:
    logits = 3 * torch.randn(images, count, classes, generator=Generator().manual_seed(0))
    return logits.double().softmax(dim=-1)


def test_the_probability_is_the_arithmetic_mean_of_the_trajectories_and_msp_its_largest() -> None:
    trajectories = random_trajectories()
    actual, expected = summarise(trajectories), np.mean(trajectories.numpy(), axis=1)
    np.testing.assert_allclose(actual.probabilities, expected, rtol=1e-12)
    np.testing.assert_allclose(actual.msp, expected.max(axis=-1), rtol=1e-12)


def test_entropies_equal_scipys_in_nats() -> None:
    trajectories = random_trajectories()
    actual = summarise(trajectories)
    total = stats.entropy(trajectories.numpy().mean(axis=1), axis=-1)
    expected = stats.entropy(trajectories.numpy(), axis=-1).mean(axis=1)
    np.testing.assert_allclose(actual.entropy, total, rtol=1e-10)
    np.testing.assert_allclose(actual.expected_entropy, expected, rtol=1e-10)
    np.testing.assert_allclose(actual.mutual_information, total - expected, rtol=0, atol=1e-12)


def test_identical_trajectories_have_zero_mutual_information() -> None:
    for count in (1, 3, 7, 8):
        same = random_trajectories(500, 1).expand(-1, count, -1)
        information = summarise(same).mutual_information
        assert (information >= 0).all()
        torch.testing.assert_close(information, torch.zeros(500).double(), rtol=0, atol=1e-12)


def test_the_entropy_of_certain_trajectories_is_mutual_information() -> None:
    actual = summarise(torch.eye(4)[None])
    assert actual.entropy.item() == pytest.approx(math.log(4))
    assert actual.expected_entropy.item() == 0
    assert actual.mutual_information.item() == pytest.approx(math.log(4))
    assert actual.msp.item() == 0.25


def test_the_parts_of_the_variance_sum_up_to_that_of_the_class() -> None:
    trajectories = random_trajectories(count=12).unflatten(1, (2, 6))
    views = torch.randint(8, (50, 2, 6), generator=Generator().manual_seed(1))
    parts = vars(variance_of(trajectories, views)).values()
    assert all((part >= 0).all() for part in parts)
    mean = summarise(trajectories.flatten(1, 2)).probabilities
    torch.testing.assert_close(sum(parts), 1 - mean.square().sum(dim=-1))


def test_effects_of_adapters_and_views_are_told_apart_if_each_adapter_sees_all_views() -> None:
    generator = Generator().manual_seed(2)
    adapter, view, sample = (
        0.05 * torch.randn(shape, generator=generator).double()
        for shape in ((2, 1), (1, 4), (2, 8))
    )
    adapter, view = adapter - adapter.mean(), (view - view.mean()).repeat(1, 2)
    first, second = sample.unflatten(1, (2, 4)).unbind(1)  # two samples of each adapter and view
    sample = torch.cat([first - second, second - first], dim=1)
    one = 0.5 + adapter + view + sample
    seen = torch.arange(8).remainder(4).expand(1, 2, 8)
    actual = variance_of(torch.stack([one, 1 - one], dim=-1)[None], seen)
    for part, effect in (("adapters", adapter), ("views", view), ("samples", sample)):
        expected = 2 * effect.square().mean().reshape(1)  # of two classes
        torch.testing.assert_close(getattr(actual, f"between_{part}"), expected)


@pytest.mark.parametrize("normal_quantile", [0.5, 1.96, 2.447])
def test_the_quantile_agrees_with_scipy(normal_quantile: float) -> None:
    freedom = torch.tensor([[1.0, 1.5, 2.0, 3.0], [4.0, 7.3, 30.0, 151.0]]).double()
    expected = stats.t.ppf(stats.norm.cdf(normal_quantile), freedom.numpy())
    actual = student_t_quantile(normal_quantile, freedom)
    np.testing.assert_allclose(actual, expected, rtol=2e-3)


def test_standard_errors_are_those_of_welchs_test() -> None:
    """The mean over two adapters has half the error of their difference, which scipy tests."""
    generator = Generator().manual_seed(1)
    spread = torch.tensor([0.1, 1.0])[:, None, None]
    trajectories = (spread * torch.randn(30, 2, 4, 2, generator=generator)).softmax(dim=-1)
    leading = trajectories.mean(dim=(1, 2)).argmax(dim=-1)
    values = trajectories[torch.arange(30), ..., leading].double().numpy()
    test = stats.ttest_ind(values[:, 0], values[:, 1], axis=1, equal_var=False)
    error = np.abs(values[:, 0].mean(axis=1) - values[:, 1].mean(axis=1)) / np.abs(test.statistic)
    widening = stats.t.ppf(stats.norm.cdf(REPEATED_Z), test.df) / INTERVAL_ERRORS
    actual = standard_errors(trajectories)
    np.testing.assert_allclose(actual.msp, widening * error / 2, rtol=2e-3)
    np.testing.assert_allclose(actual.margin, widening * error, rtol=2e-3)


def test_one_sample_has_no_error_and_equal_samples_have_none_of_any_size() -> None:
    equal = torch.tensor([0.7, 0.3]).expand(2, 3, 4, 2)
    assert standard_errors(equal).entropy.tolist() == [0, 0]
    assert standard_errors(equal[:, :, :1]).msp.isnan().all()


def test_the_interval_holds_at_all_rounds_with_one_noisy_adapter_of_four() -> None:
    """Degrees of freedom of equal variances, A (S - 1), hold in 79% of the runs."""
    generator = Generator().manual_seed(0)
    deviation = torch.tensor([1.0, 0.02, 0.02, 0.02])[:, None] * 1e-3
    values = deviation * torch.randn(4000, 4, 16, generator=generator, dtype=torch.float64)
    held = {"unequal": torch.ones(4000, dtype=torch.bool)}
    held["equal"] = held["unequal"].clone()
    for samples in ROUNDS:
        drawn = 0.6 + values[..., :samples]
        error = standard_errors(torch.stack([drawn, 1 - drawn], dim=-1)).msp
        distance = (drawn.mean(dim=(1, 2)) - 0.6).abs()
        freedom = torch.tensor([4.0 * (samples - 1)])
        plain = (drawn.var(dim=-1).sum(dim=-1) / (16 * samples)).sqrt()
        held["unequal"] &= distance <= INTERVAL_ERRORS * error
        held["equal"] &= distance <= student_t_quantile(REPEATED_Z, freedom) * plain
    shares = {name: float(runs.double().mean()) for name, runs in held.items()}
    print(shares)
    assert shares["equal"] < 0.82
    assert shares["unequal"] > 0.91

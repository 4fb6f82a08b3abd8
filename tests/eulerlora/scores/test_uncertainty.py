"""Uncertainty of means over trajectories and their standard errors."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.stats import norm, t
from torch import Generator, Tensor

from eulerlora.scores.uncertainty import student_t_quantile, summarise


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


def test_mutual_information_is_the_mean_divergence_of_trajectories_from_their_mean() -> None:
    trajectories = random_trajectories().numpy()
    mean = trajectories.mean(axis=1, keepdims=True)
    divergence = stats.entropy(trajectories, mean, axis=-1).mean(axis=1)
    actual = summarise(torch.from_numpy(trajectories)).mutual_information
    np.testing.assert_allclose(actual, divergence, rtol=0, atol=1e-12)


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


def test_the_summary_of_float32_trajectories_is_float64() -> None:
    actual = summarise(random_trajectories(4, 2, 3).float())
    assert {value.dtype for value in vars(actual).values()} == {torch.float64}
    assert actual.probabilities.shape == (4, 3)
    for name in ("entropy", "expected_entropy", "mutual_information", "msp"):
        assert getattr(actual, name).shape == (4,)


def test_no_image_gives_empty_tensors() -> None:
    actual = summarise(torch.empty(0, 4, 3))
    assert actual.probabilities.shape == (0, 3)
    assert actual.msp.shape == actual.entropy.shape == (0,)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 14, 30, 151])
@pytest.mark.parametrize("normal_quantile", [0.5, 1.96, 2.447])
def test_the_quantile_agrees_with_scipy(normal_quantile: float, freedom: int) -> None:
    expected = t.ppf(norm.cdf(normal_quantile), freedom)
    assert student_t_quantile(normal_quantile, freedom) == pytest.approx(expected, rel=1e-9)

"""Uncertainty of means over trajectories, and the parts of their variance."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Generator, Tensor

from eulerlora import summarise
from eulerlora.scores.uncertainty import variance_of
from eulerlora_contract.errors import SettingsError


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


@pytest.mark.parametrize(
    "values",
    [
        torch.randn(4, 6, 3, generator=Generator().manual_seed(0)),
        torch.full((4, 6, 3), 1 / 3).log(),
        torch.full((4, 6, 3), 0.5),
        torch.tensor([1.5, -0.5]).expand(4, 6, 2),
        torch.full((6, 3), 1 / 3),
        torch.full((1, 4, 6, 3), 1 / 3),
        torch.full((4, 0, 3), 1 / 3),
        torch.ones(4, 6, 1, dtype=torch.int64),
        np.full((4, 6, 3), 1 / 3),
        [[[0.5, 0.5]]],
    ],
    ids=lambda values: f"{type(values).__name__} {getattr(values, 'shape', '')}",
)
def test_only_probabilities_of_trajectories_are_summarised(values: object) -> None:
    with pytest.raises(SettingsError):
        summarise(values)  # type: ignore[arg-type]


def test_rounded_probabilities_are_summarised() -> None:
    exact = torch.randn(4, 6, 100, generator=Generator().manual_seed(0)).softmax(dim=-1)
    for dtype in (torch.float16, torch.bfloat16):
        actual = summarise(exact.to(dtype)).probabilities
        torch.testing.assert_close(actual, summarise(exact).probabilities, rtol=0.01, atol=0)


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


def test_one_view_has_no_part_of_the_variance_and_views_of_one_trajectory_have_all() -> None:
    trajectories = random_trajectories(3)[:, None]  # (3, 1, 7, classes)
    actual = variance_of(
        trajectories, torch.tensor([[[3] * 7], [[*range(7)]], [[0] * 3 + [1] * 4]])
    )
    total = trajectories.flatten(1, 2).var(dim=1, unbiased=False).sum(dim=-1)
    assert actual.between_views[0] == 0
    torch.testing.assert_close(actual.between_views[1], total[1])
    two = torch.stack([part.mean(dim=0) for part in trajectories[2, 0].split([3, 4])])
    squares = (two - trajectories[2, 0].mean(dim=0)).square().sum(dim=-1)
    torch.testing.assert_close(actual.between_views[2], squares @ torch.tensor([3, 4]).double() / 7)

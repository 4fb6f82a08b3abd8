"""eulerlora.sampling.masks: law of each sample by enumeration, and variance of the mean."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
import torch
from scipy import stats
from torch import Generator, Tensor

from eulerlora.sampling.masks import (
    GROUP,
    balanced_ranks,
    consecutive_masks,
    draw_balanced_masks,
    golden_stride,
)

RANK, MIN_RANK = 20, 10  # the paper's
STANDARD_ERRORS = 5


def all_masks(rank: int, min_rank: int, groups: int) -> Tensor:
    """Returns (outcomes, samples, rank): all equally likely outcomes of the samples.

    All groups have the same circle here, which changes the law of none of them alone.
    """
    first = torch.arange(rank - min_rank + 1)[:, None]
    active = balanced_ranks(first, groups, rank, min_rank).unsqueeze(1)
    circles = torch.tensor(list(itertools.permutations(range(rank)))).unsqueeze(1)
    masks = consecutive_masks(circles, active)  # (ranks, circles, groups, 4, rank)
    return masks.flatten(0, 1).flatten(1, 2)


def mean_variance(samples: int, rank: int = RANK, min_rank: int = MIN_RANK) -> float:
    """Returns the variance of a coefficient's mean over the samples, exact up to float64 rounding.

    Groups have independent circles, so the variances of their sums add up. The positions of the
    directions are a uniform permutation, so the average over all directions of one circle equals
    the average over all circles.
    """
    first = torch.arange(rank - min_rank + 1)[:, None]
    active = balanced_ranks(first, math.ceil(samples / GROUP), rank, min_rank)
    taken = consecutive_masks(torch.arange(rank).expand(*active.shape[:-1], -1), active) > 0
    deviations = taken * (rank / active.double()).unsqueeze(-1) - 1  # (firsts, groups, 4, rank)
    deviations.flatten(1, 2)[:, samples:] = 0
    sums = deviations.sum(dim=2)
    return float((sums**2).mean(dim=(0, 2)).sum()) / samples**2


def ratio(samples: int) -> float:
    """Returns the ratio of the variances with independent and with balanced samples."""
    return mean_variance(1) / samples / mean_variance(samples)


@pytest.mark.parametrize(("rank", "min_rank"), [(4, 2), (5, 1), (5, 2), (6, 3), (3, 3)])
def test_every_balanced_sample_has_the_law_of_an_independent_sample(
    rank: int, min_rank: int
) -> None:
    """Over all outcomes, K is uniform and all subsets of a size are equally frequent."""
    masks = all_masks(rank, min_rank, groups=2)
    sizes = range(min_rank, rank + 1)
    law = {
        sum(2**direction for direction in subset): Fraction(1, len(sizes) * math.comb(rank, size))
        for size in sizes
        for subset in itertools.combinations(range(rank), size)
    }
    subsets = ((masks > 0) * 2 ** torch.arange(rank)).sum(dim=-1)
    for sample in subsets.unbind(dim=1):
        actual = Counter(sample.tolist())
        assert {subset: Fraction(count, len(masks)) for subset, count in actual.items()} == law


@pytest.mark.parametrize(("rank", "min_rank"), [(4, 2), (5, 1), (3, 3)])
def test_a_mask_is_r_over_k_on_k_directions_and_zero_elsewhere(rank: int, min_rank: int) -> None:
    masks = all_masks(rank, min_rank, groups=2)
    active = (masks > 0).sum(dim=-1, keepdim=True)
    assert active.min() == min_rank
    torch.testing.assert_close(masks, torch.where(masks > 0, rank / active, 0.0))


def test_the_enumeration_has_mean_one_and_the_known_variance() -> None:
    masks = all_masks(5, 2, groups=2).double()
    variance = sum(5 / k for k in range(2, 6)) / 4 - 1
    torch.testing.assert_close(masks.mean(dim=0), torch.ones(8, 5).double(), rtol=0, atol=1e-6)
    actual = ((masks - 1) ** 2).mean(dim=0)
    torch.testing.assert_close(actual, torch.full((8, 5), variance).double(), rtol=0, atol=1e-6)


def test_a_group_has_each_of_k_and_its_mirror_twice() -> None:
    actual = balanced_ranks(torch.arange(11)[:, None], 3, RANK, MIN_RANK)
    assert actual.shape == (11, 3, 4)
    assert torch.equal(actual[..., 0], actual[..., 1])
    assert torch.equal(actual[..., 2], actual[..., 3])
    assert (actual.sum(dim=-1) == 3 * RANK).all()  # so that a group goes around the circle thrice


@pytest.mark.parametrize("count", range(1, 41))
def test_groups_use_all_ranks_before_repeating_one(count: int) -> None:
    rank = count + 2
    actual = balanced_ranks(torch.tensor([count // 2]), count, rank, rank - count + 1)[:, 0]
    assert sorted(actual.tolist()) == list(range(rank - count + 1, rank + 1))


def test_the_stride_is_coprime_and_near_the_golden_section() -> None:
    assert [golden_stride(count) for count in (1, 2, 3, 10, 11, 20)] == [1, 1, 1, 3, 4, 7]


def test_two_samples_have_the_proven_variance() -> None:
    """Equal K and minimal overlap: no law of two samples has a lower variance."""
    shares = [above / 10 for above in range(11)]
    expected = sum(share * (1 - share) / (1 + share) ** 2 for share in shares) / 11
    assert mean_variance(2) == pytest.approx(expected)
    spread = mean_variance(1)
    square = sum((RANK / k) ** 2 for k in range(MIN_RANK, RANK + 1)) / 11
    assert mean_variance(2) == pytest.approx(1.5 * (1 + spread) - 0.5 * square - 1)


def test_four_samples_have_the_proven_variance() -> None:
    shares = [above / 10 for above in range(11)]
    expected = sum(
        share * (1 - share) * (1 - 2 * share) ** 2 / (4 * (1 + share) ** 2 * (2 - share) ** 2)
        for share in shares
    )
    assert mean_variance(4) == pytest.approx(expected / 11)


@pytest.mark.parametrize(
    ("samples", "least"),
    [(1, 0.999), (2, 2.78), (3, 2.9), (4, 63), (5, 4.7), (6, 7.6), (7, 6.3), (8, 63), (16, 63)],
)
def test_the_mean_varies_less_than_that_of_independent_samples(samples: int, least: float) -> None:
    assert ratio(samples) > least


@pytest.mark.parametrize(("rank", "min_rank"), [(8, 4), (16, 8), (9, 5), (20, 5), (20, 1)])
def test_other_ranks_reduce_the_variance_too(rank: int, min_rank: int) -> None:
    single = mean_variance(1, rank, min_rank)
    for samples in (2, 3, 4, 5, 6, 7, 8, 16):
        assert mean_variance(samples, rank, min_rank) < single / samples / 1.25


def test_samples_of_half_the_directions_are_disjoint() -> None:
    masks = consecutive_masks(torch.randperm(20, generator=seeded()), torch.full((2,), 10))
    torch.testing.assert_close(masks.mean(dim=0), torch.ones(20))


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def drawn() -> Tensor:
    """(draws, samples, rank)"""
    return draw_balanced_masks((30_000,), 6, RANK, MIN_RANK, seeded())


def test_drawn_ranks_are_uniform_for_every_sample(drawn: Tensor) -> None:
    for sample in drawn.unbind(dim=1):
        counts = (sample > 0).sum(dim=-1).bincount()[MIN_RANK:]
        assert len(counts) == RANK - MIN_RANK + 1
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_drawn_directions_are_active_with_probability_k_over_r(drawn: Tensor) -> None:
    """Pairs have the probability of a subset drawn without replacement."""
    for sample in (drawn > 0).unbind(dim=1):
        active = sample.sum(dim=-1)
        for k in (10, 13, 19):
            given = sample[active == k].double()
            together = given.T @ given / len(given)
            expected = torch.full((RANK, RANK), k * (k - 1) / (RANK * (RANK - 1))).double()
            expected.fill_diagonal_(k / RANK)
            error = (expected * (1 - expected) / len(given)).sqrt()
            assert ((together - expected).abs() < STANDARD_ERRORS * error + 1e-9).all()


@pytest.mark.parametrize("samples", [2, 3, 4, 6])
def test_the_mean_of_drawn_samples_has_the_enumerated_variance(drawn: Tensor, samples: int) -> None:
    mean = drawn[:, :samples].double().mean(dim=1)
    error = mean.std(dim=0) / math.sqrt(len(mean))
    assert ((mean.mean(dim=0) - 1).abs() < STANDARD_ERRORS * error).all()
    assert float(((mean - 1) ** 2).mean()) == pytest.approx(mean_variance(samples), rel=0.05)


def test_the_first_samples_do_not_depend_on_the_number_of_samples() -> None:
    few, many = (
        draw_balanced_masks((3, 2), samples, RANK, MIN_RANK, seeded(1)) for samples in (5, 16)
    )
    assert torch.equal(few, many[:, :, :5])


def test_draws_over_the_shape_are_independent() -> None:
    """Both the masks and the numbers of active directions are independent."""
    drawn = draw_balanced_masks((20_000, 3), 4, 4, 1, seeded(2)).double()
    features = torch.cat([drawn[..., :2], (drawn > 0).sum(-1, keepdim=True)], dim=-1)
    correlations = torch.corrcoef(features.flatten(1).T)
    entry = torch.arange(3).repeat_interleave(12)
    between_entries = correlations[entry[:, None] != entry]
    assert between_entries.abs().max() < STANDARD_ERRORS / math.sqrt(20_000)

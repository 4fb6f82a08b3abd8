"""Masks and coefficients: moments, law by enumeration, special cases, variance of the mean."""

import itertools
import math
from collections import Counter
from fractions import Fraction
from functools import cache

import pytest
import torch
from scipy import stats
from torch import Generator, Tensor

from eulerlora.nn.method import COEFFICIENTS
from eulerlora.sampling.masks import (
    AdapterSettings,
    balanced_ranks,
    consecutive_masks,
    draw_balanced_masks,
    draw_balanced_trajectories,
    draw_masks,
    draw_trajectories,
)
from eulerlora.settings import Draw
from tests.conftest import TINY_BACKBONE, random_backbone, random_network

SAMPLERS = ("independent", "balanced")
DRAWS = 40_000
PAPER = AdapterSettings()
OUTPUT = 3  # after query, key and value
STANDARD_ERRORS = 5  # two-sided 6e-7 for one number; a few thousand numbers are tested


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def trajectory_coefficients(draw: Draw, blocks: int, settings: AdapterSettings) -> Tensor:
    """(adapters * samples, blocks, 4, rank) of one image."""
    return method_of(blocks, settings).draw(draw).blocks[COEFFICIENTS]


@cache
def method_of(blocks: int, settings: AdapterSettings):
    """The method of a network with so many blocks."""
    backbone = random_backbone(TINY_BACKBONE.model_copy(update={"layers": blocks}))
    return random_network(settings, backbone=backbone).method


def assert_mean(values: Tensor, expected: float | Tensor) -> None:
    """Asserts the mean over the first axis within 5 standard errors of the draws."""
    exact = values.double()
    error = exact.std(dim=0) / math.sqrt(len(exact))
    distance = (exact.mean(dim=0) - expected).abs()
    assert (distance <= STANDARD_ERRORS * error + 1e-6).all(), (distance / error).max()


def assert_covariance(deviations: Tensor, variance: float, rank: int) -> None:
    """Asserts the covariance of deviations (draws, rank) from the known mean."""
    exact = deviations.double()
    first, second = exact.T @ exact / len(exact), (exact**2).T @ exact**2 / len(exact)
    error = ((second - first**2).clamp_min(0) / len(exact)).sqrt()
    expected = torch.full((rank, rank), -variance / (rank - 1), dtype=torch.float64)
    expected.fill_diagonal_(variance)
    assert ((first - expected).abs() <= STANDARD_ERRORS * error + 1e-6).all()


def spread(settings: AdapterSettings) -> float:
    """E[r/K] - 1 for K uniform on {Kmin, ..., r}."""
    ranks = range(settings.min_rank, settings.rank + 1)
    return float(sum(Fraction(settings.rank, k) for k in ranks) / len(ranks) - 1)


def third_of_four(draws: int, settings: AdapterSettings, generator: Generator) -> Tensor:
    """(draws, 4, rank): the third of four balanced samples, one block per draw."""
    one = settings.model_copy(update={"adapters": 1})
    return draw_balanced_trajectories(4, draws, one, generator)[2]


@pytest.fixture(scope="module", params=[(1, 1.0), (2, 1.0), (4, 0.5)], ids=str)
def settings(request: pytest.FixtureRequest) -> AdapterSettings:
    steps, scale = request.param
    return AdapterSettings(steps=steps, scale=scale)


@pytest.fixture(scope="module", params=SAMPLERS)
def coefficients(request: pytest.FixtureRequest, settings: AdapterSettings) -> Tensor:
    """(draws, 4, rank): the coefficients of one block, of an independent or a balanced sample."""
    if request.param == "independent":
        return draw_trajectories(DRAWS, 1, settings, seeded(settings.steps))[:, 0]
    return third_of_four(DRAWS // 4, settings, seeded(settings.steps))


def test_every_subset_of_a_size_is_equally_likely() -> None:
    rank, least = 5, 2
    active = draw_masks((DRAWS,), rank, least, seeded(1)) > 0
    actual = Counter(tuple(row.nonzero().flatten().tolist()) for row in active[:20_000])
    sizes = range(least, rank + 1)
    shares = {
        subset: 1 / len(sizes) / math.comb(rank, size)
        for size in sizes
        for subset in itertools.combinations(range(rank), size)
    }
    assert actual.keys() == shares.keys()
    observed = [actual[subset] for subset in shares]
    expected = [share * 20_000 for share in shares.values()]
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_every_coefficient_has_mean_one(coefficients: Tensor) -> None:
    assert_mean(coefficients, 1.0)


def test_query_key_and_value_have_the_covariance_of_a_mask(
    settings: AdapterSettings, coefficients: Tensor
) -> None:
    assert_mean((coefficients[:, :OUTPUT] - 1) ** 2, spread(settings))
    for projection in range(OUTPUT):
        assert_covariance(coefficients[:, projection] - 1, spread(settings), settings.rank)


def test_the_variance_of_the_output_is_proportional_to_sigma_squared_for_all_steps(
    settings: AdapterSettings, coefficients: Tensor
) -> None:
    variance = settings.scale**2 * spread(settings)
    assert_mean((coefficients[:, OUTPUT] - 1) ** 2, variance)
    assert_covariance(coefficients[:, OUTPUT] - 1, variance, settings.rank)


def test_the_coefficients_of_a_row_sum_to_the_rank_at_every_projection(
    coefficients: Tensor,
) -> None:
    sums = coefficients.double().sum(dim=-1)
    torch.testing.assert_close(sums, torch.full_like(sums, PAPER.rank), rtol=0, atol=1e-4)


def test_query_key_and_value_are_masks(coefficients: Tensor) -> None:
    given = coefficients[:, :OUTPUT]
    active = (given > 0).sum(dim=-1, keepdim=True)
    assert active.min() == PAPER.min_rank
    torch.testing.assert_close(given, torch.where(given > 0, PAPER.rank / active, 0.0))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_output_has_the_enumerated_law(steps: int, sampler: str) -> None:
    """With r=2 and Kmin=1, a step adds +1, -1 or 0 to the first direction, independently.

    Moments alone do not reveal steps that share K or are balanced against each other.
    """
    step = {1: Fraction(1, 4), -1: Fraction(1, 4), 0: Fraction(1, 2)}
    law: Counter[int] = Counter()
    for path in itertools.product(step, repeat=steps):
        law[sum(path)] += math.prod(step[move] for move in path)
    settings = AdapterSettings(rank=2, min_rank=1, steps=steps, scale=0.7)
    if sampler == "independent":
        output = draw_trajectories(20_000, 1, settings, seeded(3))[:, 0, OUTPUT, 0]
    else:
        output = third_of_four(20_000, settings, seeded(3))[:, OUTPUT, 0]
    moves = (output.double() - 1) * math.sqrt(steps) / settings.scale
    torch.testing.assert_close(moves, moves.round(), rtol=0, atol=1e-5)
    actual = Counter(moves.round().int().tolist())
    assert actual.keys() == law.keys()
    observed, expected = zip(*((actual[m], float(law[m]) * len(output)) for m in law), strict=True)
    assert stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize(("samples", "least"), [(2, 2.5), (4, 50), (8, 50), (16, 50)])
def test_the_mean_of_balanced_samples_has_a_lower_variance_at_every_projection(
    samples: int, least: float
) -> None:
    """The factor compares with the same number of independent samples."""
    one = PAPER.model_copy(update={"adapters": 1})
    drawn = draw_balanced_trajectories(samples, 2_000, one, seeded()).double()
    variance = ((drawn.mean(dim=0) - 1) ** 2).mean(dim=(0, 2))
    assert variance.shape == (OUTPUT + 1,)
    assert (variance * least < spread(PAPER) / samples).all()


def test_zero_scale_gives_one_at_the_output_only() -> None:
    drawn = draw_trajectories(50, 3, AdapterSettings(scale=0.0), seeded())
    assert (drawn[:, :, OUTPUT] == 1).all()
    assert (drawn[:, :, :OUTPUT] != 1).any(dim=-1).float().mean() > 0.8


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_with_all_ranks_active_stochastic_equals_deterministic(steps: int, sampler: str) -> None:
    settings = AdapterSettings(rank=6, min_rank=6, steps=steps)
    draw = Draw(mode="stoch", samples=3, seed=1, sampler=sampler)
    stochastic = trajectory_coefficients(draw, 2, settings)
    deterministic = trajectory_coefficients(Draw(), 2, settings)
    assert torch.equal(stochastic, deterministic.repeat_interleave(3, dim=0))


def test_deterministic_coefficients_are_one() -> None:
    settings = AdapterSettings(adapters=3, rank=2, min_rank=1)
    actual = trajectory_coefficients(Draw(), 5, settings)
    assert torch.equal(actual, torch.ones(3, 5, 4, 2))


def test_draws_are_independent_over_trajectories_blocks_and_projections() -> None:
    """The squared deviations test the numbers of active directions."""
    draws = 20_000
    settings = AdapterSettings(rank=4, min_rank=1, steps=1)
    drawn = draw_trajectories(2 * draws, 2, settings, seeded(4)).double()
    groups = drawn.view(draws, -1, settings.rank)  # (draws, trajectory x block x projection, rank)
    features = torch.stack([groups[..., 0], groups[..., 1], (groups[..., 0] - 1) ** 2], dim=-1)
    correlations = torch.corrcoef(features.flatten(1).T)
    group = torch.arange(groups.shape[1]).repeat_interleave(3)
    between_groups = correlations[group[:, None] != group]
    assert len(between_groups) == 16 * 15 * 9
    assert between_groups.abs().max() < STANDARD_ERRORS / math.sqrt(draws)


def test_balanced_draws_are_independent_over_adapters_blocks_and_projections() -> None:
    """For all pairs of samples, and for their numbers of active directions."""
    draws, settings = 10_000, AdapterSettings(adapters=2, rank=4, min_rank=1, steps=1)
    drawn = draw_balanced_trajectories(2, draws, settings, seeded(5)).double()
    groups = drawn.unflatten(0, (2, 2)).permute(2, 0, 3, 1, 4)  # (.., adapter, projection, sample)
    features = torch.stack([groups[..., 0], groups[..., 1], (groups[..., 0] - 1) ** 2], dim=-1)
    correlations = torch.corrcoef(features.flatten(1).T)
    group = torch.arange(2 * 4).repeat_interleave(2 * 3)
    between_groups = correlations[group[:, None] != group]
    assert len(between_groups) == 8 * 7 * 36
    assert between_groups.abs().max() < STANDARD_ERRORS / math.sqrt(draws)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_draws_are_independent_over_adapters_and_neighbouring_seeds(sampler: str) -> None:
    settings = AdapterSettings(adapters=2, rank=3, min_rank=1, steps=1)
    seeds = 800
    template = Draw(mode="stoch", sampler=sampler)
    drawn = torch.stack(
        [
            trajectory_coefficients(template.model_copy(update={"seed": seed}), 1, settings)
            for seed in range(seeds)
        ]
    )
    first, second = drawn[:, 0, 0, 0, 0], drawn[:, 1, 0, 0, 0]
    series = torch.stack([first[:-1], second[:-1], first[1:], second[1:]])
    correlations = torch.corrcoef(series).fill_diagonal_(0)
    assert correlations.abs().max() < STANDARD_ERRORS / math.sqrt(seeds)


def part(first: int, samples: int, sampler: str) -> Tensor:
    """(adapters, samples - first, ...) of the samples after `first` of 11."""
    draw = Draw(mode="stoch", samples=samples, first=first, drawn=11, seed=3, sampler=sampler)
    actual = trajectory_coefficients(draw, 2, PAPER)
    return actual.unflatten(0, (PAPER.adapters, samples - first))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_rounds_run_the_samples_of_the_whole_request(sampler: str) -> None:
    whole = part(0, 11, sampler)
    for first, samples in ((0, 3), (3, 4), (4, 10), (10, 11)):
        assert torch.equal(part(first, samples, sampler), whole[:, first:samples])


RANK, MIN_RANK = 20, 10  # the paper's


def all_masks(rank: int, min_rank: int, groups: int) -> Tensor:
    """(outcomes, samples, rank): all equally likely outcomes of the samples.

    All groups have the same circle here, which changes the law of none of them alone.
    """
    first = torch.arange(rank - min_rank + 1)[:, None]
    active = balanced_ranks(first, groups, rank, min_rank).unsqueeze(1)
    circles = torch.tensor(list(itertools.permutations(range(rank)))).unsqueeze(1)
    masks = consecutive_masks(circles, active)  # (ranks, circles, groups, 4, rank)
    return masks.flatten(0, 1).flatten(1, 2)


def mean_variance(samples: int, rank: int = RANK, min_rank: int = MIN_RANK) -> float:
    """The variance of a coefficient's mean over the samples, exact up to float64 rounding.

    Groups have independent circles, so the variances of their sums add up. The positions of the
    directions are a uniform permutation, so the average over all directions of one circle equals
    the average over all circles.
    """
    first = torch.arange(rank - min_rank + 1)[:, None]
    active = balanced_ranks(first, math.ceil(samples / 4), rank, min_rank)
    taken = consecutive_masks(torch.arange(rank).expand(*active.shape[:-1], -1), active) > 0
    deviations = taken * (rank / active.double()).unsqueeze(-1) - 1  # (firsts, groups, 4, rank)
    deviations.flatten(1, 2)[:, samples:] = 0
    sums = deviations.sum(dim=2)
    return float((sums**2).mean(dim=(0, 2)).sum()) / samples**2


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


@pytest.mark.parametrize("count", range(1, 41))
def test_groups_use_all_ranks_before_repeating_one(count: int) -> None:
    rank = count + 2
    actual = balanced_ranks(torch.tensor([count // 2]), count, rank, rank - count + 1)[:, 0]
    assert sorted(actual.tolist()) == list(range(rank - count + 1, rank + 1))


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


@pytest.mark.parametrize(("rank", "min_rank"), [(8, 4), (16, 8), (9, 5), (20, 5), (20, 1)])
def test_other_ranks_reduce_the_variance_too(rank: int, min_rank: int) -> None:
    single = mean_variance(1, rank, min_rank)
    for samples in (2, 3, 4, 5, 6, 7, 8, 16):
        assert mean_variance(samples, rank, min_rank) < single / samples / 1.25


@pytest.fixture(scope="module")
def drawn() -> Tensor:
    """(draws, samples, rank)"""
    return draw_balanced_masks((30_000,), 6, RANK, MIN_RANK, seeded())


@pytest.mark.parametrize("samples", [2, 3, 4, 6])
def test_the_mean_of_drawn_samples_has_the_enumerated_variance(drawn: Tensor, samples: int) -> None:
    mean = drawn[:, :samples].double().mean(dim=1)
    error = mean.std(dim=0) / math.sqrt(len(mean))
    assert ((mean.mean(dim=0) - 1).abs() < STANDARD_ERRORS * error).all()
    assert float(((mean - 1) ** 2).mean()) == pytest.approx(mean_variance(samples), rel=0.05)

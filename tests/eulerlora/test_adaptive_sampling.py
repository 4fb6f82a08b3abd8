"""Rounds of adaptive sampling, and standard errors, on synthetic trajectories."""

import pytest
import torch
from scipy.stats import multivariate_normal, norm, t
from torch import Generator, Tensor

from eulerlora.sampling.adaptive import (
    INTERVAL_ERRORS,
    MAX_AUTO_SAMPLES,
    REPEATED_Z,
    ROUNDS,
    round_draws,
    standard_errors,
)
from eulerlora.settings import Draw

ADAPTERS, CLASSES = 2, 3
DRAW = Draw(mode="stoch", samples=1, seed=9, sampler="balanced")


def test_rounds_run_every_sample_once_and_nothing_else() -> None:
    draws = list(round_draws(DRAW))
    run = [sample for draw in draws for sample in range(draw.first, draw.samples)]
    assert run == list(range(MAX_AUTO_SAMPLES))
    assert [draw.samples for draw in draws] == list(ROUNDS)
    assert {(draw.seed, draw.sampler) for draw in draws} == {(9, "balanced")}


def independent_draws(samples: int) -> Tensor:
    """Returns (20,000, adapters, samples, classes)."""
    generator = Generator().manual_seed(1)
    centre = torch.tensor([[[1.0, 0.2, -0.5]], [[0.6, 0.4, 0.0]]]).double()
    noise = torch.randn(20_000, ADAPTERS, samples, CLASSES, generator=generator).double()
    return (centre + 0.3 * noise).softmax(dim=-1)


def test_standard_errors_are_the_deviation_over_draws_times_the_widening_for_few_samples() -> None:
    draws = independent_draws(4)
    mean = draws.mean(dim=(1, 2))
    errors = standard_errors(draws)
    widening = t.ppf(norm.cdf(REPEATED_Z), df=ADAPTERS * 3) / INTERVAL_ERRORS
    for error, statistic in (
        (errors.msp, mean[:, 0]),
        (errors.margin, mean[:, 0] - mean[:, 1]),
        (errors.entropy, torch.special.entr(mean).sum(dim=-1)),
    ):
        expected = widening * float(statistic.std())
        assert float(error.square().mean().sqrt()) == pytest.approx(expected, rel=0.03)


def test_the_bound_for_all_rounds_is_that_of_a_brownian_motion_at_their_samples() -> None:
    shared = torch.tensor(ROUNDS).double()
    shared = torch.minimum(shared, shared[:, None]) / torch.maximum(shared, shared[:, None])
    bound = [REPEATED_Z] * len(ROUNDS)
    normal = multivariate_normal(cov=shared.sqrt().numpy(), seed=0, abseps=1e-5, maxpts=200_000)
    inside = normal.cdf(bound, lower_limit=[-value for value in bound])
    assert float(inside) == pytest.approx(0.95, abs=3e-4)


def test_the_interval_of_two_errors_covers_the_truth_wherever_the_rounds_stop() -> None:
    """Without the widening, 91% of the intervals cover it."""
    draws = independent_draws(MAX_AUTO_SAMPLES)
    truth = independent_draws(64).mean(dim=(0, 1, 2))
    counts = torch.full((len(draws),), MAX_AUTO_SAMPLES)
    for samples in reversed(ROUNDS[:-1]):  # an image stops where its label seems certain
        rows = draws[:, :, :samples]
        first, second = rows.mean(dim=(1, 2)).topk(2).values.unbind(dim=-1)
        counts[first - second >= INTERVAL_ERRORS * standard_errors(rows).margin] = samples
    assert set(counts.tolist()) == set(ROUNDS)
    covered, unwidened = [], []
    for samples in ROUNDS:
        stopped = draws[counts == samples][:, :, :samples]
        mean = stopped.mean(dim=(1, 2))
        distance = (mean[:, 0] - truth[0]).abs() / standard_errors(stopped).msp
        distance = distance[mean.argmax(dim=-1) == 0]  # the error is that of the first class
        widening = t.ppf(norm.cdf(REPEATED_Z), df=ADAPTERS * (samples - 1)) / INTERVAL_ERRORS
        covered.append(distance <= INTERVAL_ERRORS)
        unwidened.append(distance * widening <= INTERVAL_ERRORS)
    assert float(torch.cat(covered).double().mean()) > 0.95
    assert float(torch.cat(unwidened).double().mean()) < 0.93

"""eulerlora.sampling.adaptive on synthetic trajectories: clear, ambiguous, near the threshold."""

import math

import pytest
import torch
from scipy.stats import multivariate_normal, norm, t
from torch import Generator, Tensor

from eulerlora.nn.runtime import ImageOutput
from eulerlora.sampling.adaptive import (
    INTERVAL_ERRORS,
    MAX_ENTROPY_ERROR_NATS,
    MAX_SAMPLES,
    REPEATED_Z,
    ROUNDS,
    AdaptiveSampling,
    StoppingRule,
    is_converged,
    round_draws,
    samples_until_converged,
    standard_errors,
)
from eulerlora.settings import Draw

ADAPTERS, CLASSES = 2, 3
DRAW = Draw(mode="stoch", samples=1, seed=9, sampler="balanced")
REQUIRED_ERRORS = t.ppf(norm.cdf(2), df=ADAPTERS * (MAX_SAMPLES - 1))
"""Standard errors that separate a certain decision from an uncertain one, after all samples."""


def trajectories(first: Tensor) -> Tensor:
    """(adapters, samples, 3) with this probability of the first class, the rest split 2 to 1."""
    return torch.stack([first, (1 - first) * 2 / 3, (1 - first) / 3], dim=-1).double()


def alternating(mean: float, deviation: float) -> Tensor:
    """(adapters, MAX_SAMPLES): two values in turn; every pair has this mean and deviation."""
    sign = torch.tensor([1.0, -1.0]).repeat(MAX_SAMPLES // 2).double()
    return (mean + deviation / math.sqrt(2) * sign).repeat(ADAPTERS, 1)


def error_of_mean(deviation: float) -> float:
    """Standard error of the mean of all values of `alternating`, computed by hand."""
    variance = deviation**2 / 2 * MAX_SAMPLES / (MAX_SAMPLES - 1)
    return math.sqrt(variance / (ADAPTERS * MAX_SAMPLES))


def samples_needed(values: Tensor, threshold: float | None = None) -> int:
    return int(samples_until_converged(values, threshold))


def output_of(probabilities: Tensor) -> ImageOutput:
    """Returns the output of a round. probabilities: (adapters, samples, classes)."""
    rows = probabilities.flatten(0, 1)
    return ImageOutput(rows.log(), rows.sum(dim=-1), torch.zeros(len(rows), 1))


def test_rounds_run_every_sample_once_and_nothing_else() -> None:
    draws = list(round_draws(DRAW))
    run = [sample for draw in draws for sample in range(draw.first, draw.samples)]
    assert run == list(range(MAX_SAMPLES))
    assert [draw.samples for draw in draws] == list(ROUNDS)
    assert {(draw.seed, draw.sampler) for draw in draws} == {(9, "balanced")}


@pytest.mark.parametrize("deviation", [0.001, 0.15, 0.4])
def test_the_loop_stops_where_the_vectorised_rule_does_and_joins_rounds_adapter_by_adapter(
    deviation: float,
) -> None:
    values = trajectories(alternating(0.5, deviation))
    sampling = AdaptiveSampling(DRAW, ADAPTERS, StoppingRule())
    draws = []
    while sampling.next_draw is not None:
        draws.append(sampling.next_draw)
        output = values[:, sampling.next_draw.first : sampling.next_draw.samples]
        sampling.add(output_of(output))
    expected = samples_needed(values)
    assert draws == [draw for draw in round_draws(DRAW) if draw.samples <= expected]
    assert sampling.draw == DRAW.model_copy(update={"samples": expected})
    torch.testing.assert_close(sampling.log_probabilities.exp(), values[:, :expected])


def test_a_clear_image_converges_in_the_first_round() -> None:
    clear = trajectories(alternating(0.9, 0.001))
    assert samples_needed(clear) == samples_needed(clear, threshold=0.5) == ROUNDS[0]


def test_an_image_with_two_equally_probable_classes_needs_all_samples() -> None:
    ambiguous = trajectories(alternating(0.4, 0.01))  # the second class has 0.4 too
    assert samples_needed(ambiguous) == MAX_SAMPLES
    assert float(standard_errors(ambiguous).entropy) < MAX_ENTROPY_ERROR_NATS / 2


@pytest.mark.parametrize(("factor", "expected"), [(0.97, False), (1.03, True)])
def test_the_label_must_lead_by_two_normal_standard_errors(factor: float, expected: bool) -> None:
    """Both classes have 0.4 at a factor of 0; the margin and its error are 5/3 of the first's."""
    lead = factor * REQUIRED_ERRORS * error_of_mean(0.02)
    assert bool(is_converged(trajectories(alternating(0.4 + lead, 0.02)), None)) == expected


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize(("factor", "expected"), [(0.97, False), (1.03, True)])
def test_the_msp_must_differ_from_the_threshold_by_two_normal_standard_errors(
    side: int, factor: float, expected: bool
) -> None:
    threshold = 0.7 + side * factor * REQUIRED_ERRORS * error_of_mean(0.02)
    values = trajectories(alternating(0.7, 0.02))
    assert bool(is_converged(values, threshold)) == expected
    assert is_converged(values, None)


@pytest.mark.parametrize(("factor", "expected"), [(0.97, False), (1.03, True)])
def test_two_samples_have_one_degree_of_freedom_per_adapter(factor: float, expected: bool) -> None:
    values = trajectories(alternating(0.7, 0.02))[:, :2]
    error = 0.02 / math.sqrt(ADAPTERS * 2)
    required = t.ppf(norm.cdf(2), df=ADAPTERS)
    assert bool(is_converged(values, 0.7 - factor * required * error)) == expected


@pytest.mark.parametrize(("factor", "expected"), [(0.97, True), (1.03, False)])
def test_the_entropy_must_have_an_error_of_at_most_0_06_nats(factor: float, expected: bool) -> None:
    mean = 0.75
    slope = abs(
        math.log(mean) - math.log((1 - mean) * 2 / 3) * 2 / 3 - math.log((1 - mean) / 3) / 3
    )
    deviation = factor * 0.06 * 2 / REQUIRED_ERRORS / (slope * error_of_mean(1))
    assert bool(is_converged(trajectories(alternating(mean, deviation)), None)) == expected


def test_few_samples_need_a_smaller_entropy_error_than_many() -> None:
    wide = trajectories(alternating(0.75, 0.15))
    samples = samples_needed(wide)
    assert ROUNDS[0] < samples < MAX_SAMPLES
    error = standard_errors(wide[:, :samples]).entropy
    assert float(error) <= MAX_ENTROPY_ERROR_NATS * REPEATED_Z / 2 * 1.25  # and a larger t
    assert not is_converged(wide[:, : ROUNDS[ROUNDS.index(samples) - 1]], None)


def test_adapters_that_disagree_do_not_prevent_convergence() -> None:
    """Adapters are fixed, not drawn: more samples do not reduce their difference."""
    apart = torch.stack([alternating(0.95, 0.001)[0], alternating(0.6, 0.001)[0]])
    assert samples_needed(trajectories(apart)) == ROUNDS[0]


def test_non_finite_trajectories_need_no_more_samples() -> None:
    values = trajectories(alternating(0.4, 0.3))[:, :2]
    assert not is_converged(values, 0.4)
    values[1, 1, 2] = torch.nan
    assert is_converged(values, 0.4)


def test_a_batch_gives_each_image_the_result_it_gets_alone() -> None:
    generator = Generator().manual_seed(0)
    logits = torch.randn(40, 1, 1, CLASSES, generator=generator)
    noise = torch.randn(40, ADAPTERS, MAX_SAMPLES, CLASSES, generator=generator)
    batch = (logits + 0.4 * noise).softmax(dim=-1)
    together = samples_until_converged(batch, 0.5)
    assert together.tolist() == [samples_needed(image, 0.5) for image in batch]
    assert set(together.tolist()) == set(ROUNDS)


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
    draws = independent_draws(MAX_SAMPLES)
    truth = independent_draws(64).mean(dim=(0, 1, 2))
    counts = samples_until_converged(draws, threshold=0.55)
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

"""Hand-made trajectories that are clear, divided, or near the threshold."""

import math

import pytest
import torch
from scipy.stats import t
from torch import Generator, Tensor

from eulerlora.adaptive_sampling import (
    CERTAINTY,
    ENTROPY_ERROR_NATS,
    MOST,
    ROUNDS,
    joined,
    rounds,
    samples_until_settled,
    settled,
    standard_errors,
    student,
)
from eulerlora.settings import Draw

ADAPTERS, CLASSES = 2, 3


def trajectories(first: Tensor) -> Tensor:
    """(adapters, samples, 3) with the first class's probability given, the rest shared 2 to 1."""
    return torch.stack([first, (1 - first) * 2 / 3, (1 - first) / 3], dim=-1).double()


def spread(mean: float, deviation: float) -> Tensor:
    """(adapters, MOST): values of that mean over every two, and of that standard deviation."""
    sign = torch.tensor([1.0, -1.0]).repeat(MOST // 2).double()
    return (mean + deviation / math.sqrt(2) * sign).repeat(ADAPTERS, 1)


def taken(found: Tensor, threshold: float | None = None) -> int:
    return int(samples_until_settled(found, threshold))


def test_rounds_run_every_sample_once_and_nothing_else() -> None:
    draw = Draw(mode="stoch", samples=1, seed=9, sampler="balanced")
    run = [sample for each in rounds(draw) for sample in range(each.first, each.samples)]
    assert run == list(range(MOST))
    assert [each.samples for each in rounds(draw)] == list(ROUNDS)
    assert {(each.seed, each.sampler) for each in rounds(draw)} == {(9, "balanced")}


def test_answers_of_rounds_are_joined_adapter_by_adapter() -> None:
    whole = torch.rand(ADAPTERS, 5, CLASSES)
    parts = [whole[:, :2].flatten(0, 1), whole[:, 2:].flatten(0, 1)]
    assert torch.equal(joined(parts, ADAPTERS), whole)


def test_a_clear_image_is_settled_at_the_first_round() -> None:
    assert taken(trajectories(spread(0.9, 0.001))) == ROUNDS[0]
    assert taken(trajectories(spread(0.9, 0.001)), threshold=0.5) == ROUNDS[0]


def test_an_image_whose_label_hangs_in_the_balance_takes_all_samples() -> None:
    divided = trajectories(spread(0.4, 0.01))  # the second class has 0.4 as well
    assert taken(divided) == MOST
    assert float(standard_errors(divided).entropy) < ENTROPY_ERROR_NATS / 2


def test_an_image_near_the_threshold_goes_on_and_is_settled_away_from_it() -> None:
    near = trajectories(spread(0.7, 0.02))
    error = float(standard_errors(near[:, : ROUNDS[0]]).msp)
    far = student(CERTAINTY, ADAPTERS * (ROUNDS[0] - 1)) * error
    assert taken(near) == ROUNDS[0]
    assert taken(near, threshold=0.7) == MOST
    for side in (-1, 1):
        assert taken(near, threshold=0.7 + side * 1.01 * far) == ROUNDS[0]
        assert taken(near, threshold=0.7 + side * 0.99 * far) > ROUNDS[0]


def test_an_entropy_that_is_not_known_well_enough_wants_more_samples() -> None:
    loose = trajectories(spread(0.75, 0.15))
    took = taken(loose)
    assert ROUNDS[0] < took < MOST
    assert float(standard_errors(loose[:, :took]).entropy) <= ENTROPY_ERROR_NATS


def test_adapters_that_disagree_for_good_do_not_keep_an_image_from_being_settled() -> None:
    """They are given, not drawn: more samples would not bring them together."""
    apart = torch.stack([spread(0.95, 0.001)[0], spread(0.6, 0.001)[0]])
    assert taken(trajectories(apart)) == ROUNDS[0]


def test_trajectories_that_are_not_finite_want_no_more_samples() -> None:
    broken = trajectories(spread(0.4, 0.3))
    broken[1, 1, 2] = torch.nan
    assert settled(broken[:, :2], 0.4)
    assert not settled(trajectories(spread(0.4, 0.3))[:, :2], 0.4)


def test_many_images_are_judged_as_each_alone() -> None:
    random = Generator().manual_seed(0)
    logits = torch.randn(40, 1, 1, CLASSES, generator=random)
    noise = torch.randn(40, ADAPTERS, MOST, CLASSES, generator=random)
    found = (logits + 0.4 * noise).softmax(dim=-1)
    together = samples_until_settled(found, 0.5)
    assert together.tolist() == [taken(each, 0.5) for each in found]
    assert set(together.tolist()) == set(ROUNDS)


def test_the_errors_are_those_of_many_independent_draws() -> None:
    random = Generator().manual_seed(1)
    centre = torch.tensor([[[1.0, 0.2, -0.5]], [[0.6, 0.4, 0.0]]]).double()
    noise = torch.randn(20_000, ADAPTERS, 4, CLASSES, generator=random).double()
    found = (centre + 0.3 * noise).softmax(dim=-1)
    mean = found.mean(dim=(1, 2))
    errors = standard_errors(found)
    lead = mean[:, 0] - mean[:, 1]
    for error, of in (
        (errors.msp, mean[:, 0]),
        (errors.lead, lead),
        (errors.entropy, torch.special.entr(mean).sum(dim=-1)),
    ):
        assert float(error.square().mean().sqrt()) == pytest.approx(float(of.std()), rel=0.03)


@pytest.mark.parametrize(("freedom", "within"), [(2, 0.12), (6, 0.01), (14, 0.002), (30, 0.001)])
def test_few_samples_are_held_to_students_law(freedom: int, within: float) -> None:
    assert student(1.96, freedom) == pytest.approx(t.ppf(0.975, freedom), rel=within)

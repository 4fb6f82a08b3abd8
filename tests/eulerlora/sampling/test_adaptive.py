"""Adaptive sampling: rounds, decisions, and the fit of their margins."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from eulerlora.answer import Predictions
from eulerlora.sampling.adaptive import (
    AdaptiveSampling,
    DecisionMargins,
    RoundMargins,
    StoppingRule,
    fit_margins,
    last_rounds,
)
from eulerlora.scores.trajectories import Trajectories
from eulerlora.settings import Draw
from tests.conftest import STOCH

AUTO_ROUNDS, MAX_AUTO_SAMPLES = (1, 2, 4), 4
MIN_IMAGES, TARGET_AGREEMENT = 100, 0.998
ROWS = torch.tensor([[[[0.6, 0.3, 0.1], [0.5, 0.3, 0.2]], [[0.7, 0.2, 0.1], [0.2, 0.4, 0.4]]]])


def log_odds(probability):
    return np.log(probability) - np.log1p(-probability)


def trajectories_of(probabilities: Tensor) -> Trajectories:
    """Of probabilities (n, adapters, samples, classes)."""
    shape = probabilities.shape[:3]
    views = torch.zeros(shape, dtype=torch.int64)
    return Trajectories.of(probabilities.double().log(), torch.zeros(*shape, 1), views)


def ends(summary: Predictions, rule: StoppingRule, samples: int = 2, **margins: float) -> bool:
    """Whether an image ends by a rule with these margins of the round, others of 0."""
    values = dict.fromkeys(("lead", "log_odds", "entropy", "agreement", "feature_distance"), 0.0)
    entry = RoundMargins(samples=samples, **values | margins)
    fitted = DecisionMargins(
        level=1, agreement=1, options=STOCH, rounds=(entry,), images=100, data="synthetic"
    )
    (actual,) = replace(rule, margins=fitted).ends(summary, samples)
    return bool(actual)


SUMMARY = Predictions.of(trajectories_of(ROWS))  # probabilities 0.5, 0.3, 0.2


def test_a_label_is_settled_from_the_margin_on() -> None:
    lead = math.log(0.5 / 0.3)
    assert ends(SUMMARY, StoppingRule(), lead=lead - 1e-6)
    assert not ends(SUMMARY, StoppingRule(), lead=lead + 1e-6)


def test_the_msp_is_compared_on_the_scale_of_log_odds() -> None:
    distance = log_odds(0.5) - log_odds(0.4)
    for threshold in (0.4, 0.6):
        assert ends(SUMMARY, StoppingRule(msp=threshold), log_odds=distance - 1e-6)
        assert not ends(SUMMARY, StoppingRule(msp=threshold), log_odds=distance + 1e-6)


def test_a_decision_beyond_label_and_flags_must_be_settled_too() -> None:
    """The probability of b and c is 0.5; the trajectories disagree."""
    distance = log_odds(0.5) - log_odds(0.4)

    def settled(compared) -> np.ndarray:
        assert compared.disagreement() == 1 and compared.ood == 0 and compared.unfamiliar is None
        assert compared.entropy(0.1) == 1 and compared.entropy(5.0) == 0
        return ~np.isnan(compared.probability((1, 2), 0.4))

    rule = StoppingRule(msp=0.01, settled=settled)
    assert ends(SUMMARY, rule, log_odds=distance - 1e-6)
    assert not ends(SUMMARY, rule, log_odds=distance + 1e-6)


def test_log_odds_of_certain_probabilities_are_finite() -> None:
    certain = Predictions.of(trajectories_of(torch.tensor([[[[1.0, 1e-30, 1e-30]]]])))
    for threshold in (0.0, 1.0):
        assert ends(certain, StoppingRule(msp=threshold), log_odds=1e-3) == (threshold == 0)
        assert not ends(certain, StoppingRule(msp=threshold), log_odds=1e3)


IMAGES, ADAPTERS, OUTPUTS = 400, 2, 3
DRAW = Draw(mode="stoch", samples=MAX_AUTO_SAMPLES, seed=3)
RULE = StoppingRule(msp=0.5)
NEVER = replace(
    RULE,
    margins=DecisionMargins(
        level=1,
        agreement=1,
        options=STOCH,
        rounds=tuple(
            RoundMargins(samples=samples, lead=1e9, log_odds=0, entropy=0, agreement=0)
            for samples in AUTO_ROUNDS[:-1]
        ),
        images=100,
        data="synthetic",
    ),
)


@pytest.fixture(scope="module")
def trajectories() -> Trajectories:
    generator = Generator().manual_seed(0)
    logits = 2 * torch.randn(IMAGES, 1, 1, OUTPUTS, generator=generator).double()
    noise = torch.randn(IMAGES, ADAPTERS, MAX_AUTO_SAMPLES, OUTPUTS, generator=generator)
    return trajectories_of((logits + 0.2 * noise.double()).softmax(dim=-1))


@pytest.fixture(scope="module")
def rounds(trajectories: Trajectories) -> dict[int, Predictions]:
    return {count: Predictions.of(trajectories.first(count)) for count in AUTO_ROUNDS}


@pytest.fixture(scope="module")
def margins(trajectories: Trajectories) -> DecisionMargins:
    fitted = fit_margins(trajectories, np.arange(IMAGES), None, RULE, STOCH, "synthetic")
    assert fitted is not None
    return fitted


def test_a_margin_covers_the_level_of_the_images(
    rounds: dict[int, Predictions], margins: DecisionMargins
) -> None:
    last = rounds[MAX_AUTO_SAMPLES]
    assert margins.level < 1
    for entry in margins.rounds:
        summary = rounds[entry.samples]
        within = (summary.entropy - last.entropy).abs() <= entry.entropy
        of_label = last.probabilities.gather(1, summary.predicted[:, None])[:, 0]
        near = np.abs(log_odds(summary.msp) - log_odds(of_label)) <= entry.log_odds
        assert within.sum() == near.sum() == margins.level * IMAGES
    assert [entry.samples for entry in margins.rounds] == list(AUTO_ROUNDS[:-1])


def test_the_level_is_the_least_with_the_target_agreement_and_saves_samples(
    trajectories: Trajectories, rounds: dict[int, Predictions], margins: DecisionMargins
) -> None:
    assert margins.agreement >= TARGET_AGREEMENT
    assert margins.options == STOCH
    rule = replace(RULE, margins=margins)
    taken = last_rounds(rounds, rule)
    ended, last = Predictions.of(trajectories.first(taken)), rounds[MAX_AUTO_SAMPLES]
    same = (rule.decisions(ended) == rule.decisions(last)).all(axis=1)
    assert same.mean() >= TARGET_AGREEMENT - 0.01
    assert taken.sum() < 0.6 * MAX_AUTO_SAMPLES * IMAGES
    assert (taken == AUTO_ROUNDS[0]).sum() > IMAGES / 3


def test_few_images_give_no_margins(trajectories: Trajectories) -> None:
    few = trajectories.images(slice(MIN_IMAGES - 1))
    assert fit_margins(few, np.arange(MIN_IMAGES - 1), None, RULE, STOCH, "synthetic") is None


def test_images_in_the_order_of_their_classes_have_the_margins_of_any_order() -> None:
    generator = Generator().manual_seed(0)
    logits = 2 * torch.randn(IMAGES, 1, 1, OUTPUTS, generator=generator).double()
    noise = torch.randn(IMAGES, ADAPTERS, MAX_AUTO_SAMPLES, OUTPUTS, generator=generator).double()
    noise[: IMAGES // 2] *= 0.02  # one class is easy
    noise[IMAGES // 2 :] *= 0.4
    ordered = trajectories_of((logits + noise).softmax(dim=-1))
    shuffled = ordered.images(torch.randperm(IMAGES, generator=generator))
    first, second = (
        fit_margins(images, np.arange(IMAGES), None, RULE, STOCH, "synthetic")
        for images in (ordered, shuffled)
    )
    assert first.agreement >= TARGET_AGREEMENT
    assert first.level == pytest.approx(second.level, abs=0.06)


def test_the_loop_ends_where_the_fit_says_and_answers_with_its_last_rounds(
    trajectories: Trajectories, rounds: dict[int, Predictions], margins: DecisionMargins
) -> None:
    rule = replace(RULE, margins=margins)
    expected = last_rounds(rounds, rule)
    assert set(expected.tolist()) == set(AUTO_ROUNDS)
    probabilities = trajectories.log_probabilities.exp()
    for index in range(40):
        sampling = AdaptiveSampling(DRAW, rule)
        while (draw := sampling.next_draw) is not None:
            of_round = probabilities[index : index + 1, :, draw.first : draw.samples]
            sampling.add(trajectories_of(of_round))
        answered = sampling.trajectories.log_probabilities.exp()
        wanted = probabilities[index : index + 1, :, : expected[index]]
        torch.testing.assert_close(answered, wanted)
        assert (sampling.summary is None) == (expected[index] == MAX_AUTO_SAMPLES)
        if sampling.summary is not None:
            torch.testing.assert_close(
                sampling.summary.probabilities, answered.mean(dim=(1, 2)).double()
            )


def test_an_unsettled_label_keeps_the_rounds_going(rounds: dict[int, Predictions]) -> None:
    assert set(last_rounds(rounds, NEVER).tolist()) == {MAX_AUTO_SAMPLES}


def test_rounds_run_every_sample_once_and_nothing_else() -> None:
    draw = Draw(mode="stoch", samples=MAX_AUTO_SAMPLES, seed=9, sampler="balanced")
    sampling = AdaptiveSampling(draw, NEVER)
    draws = []
    while sampling.next_draw is not None:
        draws.append(sampling.next_draw)
        rows = torch.full((1, ADAPTERS, draws[-1].count, OUTPUTS), 1 / OUTPUTS)
        sampling.add(trajectories_of(rows))
    assert [sample for draw in draws for sample in range(draw.first, draw.samples)] == list(
        range(MAX_AUTO_SAMPLES)
    )
    assert [draw.samples for draw in draws] == list(AUTO_ROUNDS)
    assert {(draw.mode, draw.seed, draw.sampler) for draw in draws} == {("stoch", 9, "balanced")}


def test_nan_ends_the_rounds() -> None:
    sampling = AdaptiveSampling(DRAW, NEVER)
    sampling.add(trajectories_of(torch.full((1, ADAPTERS, 1, OUTPUTS), torch.nan)))
    assert sampling.next_draw is None

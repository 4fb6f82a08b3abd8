"""Adaptive sampling: rounds, decisions, and the fit of their margins."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from eulerlora.nn.network import NetworkOutput
from eulerlora.nn.runtime import AdaptiveSampling
from eulerlora.sampling.adaptive import (
    MARGIN_ROUNDS,
    MAX_AUTO_SAMPLES,
    MIN_IMAGES,
    ROUNDS,
    TARGET_AGREEMENT,
    DecisionMargins,
    RoundAnswers,
    RoundMargins,
    SettledDecisions,
    StoppingRule,
    fit_margins,
    last_rounds,
    log_odds,
    margins_at,
    round_answers,
)
from eulerlora.settings import Draw

ROWS = torch.tensor([[[[0.6, 0.3, 0.1], [0.5, 0.3, 0.2]], [[0.7, 0.2, 0.1], [0.2, 0.4, 0.4]]]])


def settled(**margins: float) -> SettledDecisions:
    (answer,) = round_answers(ROWS, 2, torch.tensor([5.0]))
    values = dict.fromkeys(("lead", "log_odds", "entropy", "agreement", "feature_distance"), 0.0)
    return SettledDecisions(answer, RoundMargins(samples=2, **values | margins))


def test_an_answer_is_the_mean_with_its_lead_and_its_least_agreement() -> None:
    answer = settled().answer
    assert answer.probabilities == pytest.approx((0.5, 0.3, 0.2))
    assert answer.label == 0
    assert answer.lead == pytest.approx(math.log(0.5 / 0.3))
    assert answer.agreement == pytest.approx(math.log(0.2 / 0.4))
    assert answer.entropy == pytest.approx(-sum(p * math.log(p) for p in (0.5, 0.3, 0.2)))


def test_a_label_is_settled_from_the_margin_on() -> None:
    lead = math.log(0.5 / 0.3)
    assert settled(lead=lead - 1e-6).label_is_settled
    assert not settled(lead=lead + 1e-6).label_is_settled


def test_a_probability_is_compared_on_the_scale_of_log_odds() -> None:
    distance = log_odds(0.5) - log_odds(0.4)
    for margin, expected in ((distance - 1e-6, True), (distance + 1e-6, None)):
        assert settled(log_odds=margin).msp_reaches(0.4) is expected
        assert settled(log_odds=margin).reaches([1, 2], 0.4) is expected
    assert settled(log_odds=distance - 1e-6).reaches([1, 2], 0.6) is False


def test_entropy_and_distance_are_compared_with_their_margins() -> None:
    entropy = settled().answer.entropy
    assert settled(entropy=0.1).entropy_reaches(entropy - 0.11) is True
    assert settled(entropy=0.1).entropy_reaches(entropy + 0.11) is False
    assert settled(entropy=0.1).entropy_reaches(entropy + 0.09) is None
    assert settled(feature_distance=1).distance_reaches(3.9) is True
    assert settled(feature_distance=1).distance_reaches(5.5) is None


def test_trajectories_that_disagree_stay_so_and_those_that_agree_need_a_margin() -> None:
    assert settled(agreement=9).trajectories_disagree is True
    (answer,) = round_answers(ROWS[:, :, :1], 1, None)  # least: log(0.6 / 0.3)
    for margin, expected in ((0.69, False), (0.70, None)):
        margins = RoundMargins(samples=1, lead=0, log_odds=0, entropy=0, agreement=margin)
        assert SettledDecisions(answer, margins).trajectories_disagree is expected
    assert SettledDecisions(answer, margins).distance_reaches(1) is False


def test_log_odds_of_certain_probabilities_are_finite() -> None:
    assert math.isfinite(log_odds(0)) and math.isfinite(log_odds(1))
    assert log_odds(0.5) == 0


IMAGES, FITTED_ADAPTERS, FITTED_CLASSES = 400, 2, 3
FITTED_DRAW = Draw(mode="stoch", seed=3)
RULE = StoppingRule(msp=0.5)


@pytest.fixture(scope="module")
def rounds() -> dict[int, Tensor]:
    """Probabilities (images, adapters, samples, classes) of each round."""
    generator = Generator().manual_seed(0)
    logits = 2 * torch.randn(IMAGES, 1, 1, FITTED_CLASSES, generator=generator).double()
    noise = torch.randn(
        IMAGES, FITTED_ADAPTERS, MAX_AUTO_SAMPLES, FITTED_CLASSES, generator=generator
    ).double()
    sampled = (logits + 0.2 * noise).softmax(dim=-1)
    return {samples: sampled[:, :, :samples] for samples in ROUNDS}


@pytest.fixture(scope="module")
def answers(rounds: dict[int, Tensor]) -> RoundAnswers:
    return {samples: round_answers(values, samples, None) for samples, values in rounds.items()}


@pytest.fixture(scope="module")
def margins(answers: RoundAnswers) -> DecisionMargins:
    fitted = fit_margins(answers, RULE, "synthetic")
    assert fitted is not None
    return fitted


def test_a_margin_covers_the_level_of_the_images(answers: RoundAnswers) -> None:
    fitted = margins_at(answers, 0.9, "synthetic")
    for entry in fitted.rounds:
        within = sum(
            abs(one.entropy - last.entropy) <= entry.entropy
            for one, last in zip(answers[entry.samples], answers[MAX_AUTO_SAMPLES], strict=True)
        )
        near = sum(
            abs(log_odds(one.msp) - log_odds(last.probabilities[one.label])) <= entry.log_odds
            for one, last in zip(answers[entry.samples], answers[MAX_AUTO_SAMPLES], strict=True)
        )
        assert within == near == 0.9 * IMAGES
    assert [entry.samples for entry in fitted.rounds] == list(MARGIN_ROUNDS)


def test_the_level_is_the_least_with_the_target_agreement_and_saves_samples(
    answers: RoundAnswers, margins: DecisionMargins
) -> None:
    assert margins.agreement >= TARGET_AGREEMENT
    assert margins.compared_with == MAX_AUTO_SAMPLES
    rule = replace(RULE, margins=margins)
    ends = last_rounds(answers, rule)
    decided = [
        (answers[end][index].label, answers[end][index].msp < 0.5) for index, end in enumerate(ends)
    ]
    wanted = [(last.label, last.msp < 0.5) for last in answers[MAX_AUTO_SAMPLES]]
    same = sum(one == other for one, other in zip(decided, wanted, strict=True))
    assert same >= (TARGET_AGREEMENT - 0.01) * IMAGES
    assert sum(ends) < 0.6 * MAX_AUTO_SAMPLES * IMAGES
    assert ends.count(ROUNDS[0]) > IMAGES / 3


def test_few_images_give_no_margins(answers: RoundAnswers) -> None:
    few = {samples: values[: MIN_IMAGES - 1] for samples, values in answers.items()}
    assert fit_margins(few, RULE, "synthetic") is None


def test_the_loop_ends_where_the_fit_says_and_answers_with_its_last_rounds(
    rounds: dict[int, Tensor], answers: RoundAnswers, margins: DecisionMargins
) -> None:
    rule = replace(RULE, margins=margins)
    expected = last_rounds(answers, rule)
    assert set(expected) == set(ROUNDS)
    for index in range(40):
        sampling = AdaptiveSampling(FITTED_DRAW, FITTED_ADAPTERS, rule)
        while (draw := sampling.next_draw) is not None:
            rows = rounds[MAX_AUTO_SAMPLES][index, :, draw.first : draw.samples].flatten(0, 1)
            sampling.add(NetworkOutput(rows.log(), torch.zeros(len(rows), 1)))
        answered = sampling.output.log_probabilities.exp()
        torch.testing.assert_close(answered, rounds[expected[index]][index].flatten(0, 1))


def test_an_unsettled_policy_keeps_the_rounds_going(
    answers: RoundAnswers, margins: DecisionMargins
) -> None:
    never = replace(RULE, margins=margins, policy=lambda _: False)
    assert set(last_rounds(answers, never)) == {MAX_AUTO_SAMPLES}


def test_rounds_run_every_sample_once_and_nothing_else(margins: DecisionMargins) -> None:
    never = replace(RULE, margins=margins, policy=lambda _: False)
    draw = Draw(mode="stoch", seed=9, sampler="balanced")
    sampling = AdaptiveSampling(draw, FITTED_ADAPTERS, never)
    draws = []
    while sampling.next_draw is not None:
        draws.append(sampling.next_draw)
        rows = FITTED_ADAPTERS * draws[-1].count
        sampling.add(NetworkOutput(torch.zeros(rows, FITTED_CLASSES), torch.zeros(rows, 1)))
    assert [sample for draw in draws for sample in range(draw.first, draw.samples)] == list(
        range(MAX_AUTO_SAMPLES)
    )
    assert [draw.samples for draw in draws] == list(ROUNDS)
    assert {(draw.mode, draw.seed, draw.sampler) for draw in draws} == {("stoch", 9, "balanced")}


def test_nan_ends_the_rounds(margins: DecisionMargins) -> None:
    sampling = AdaptiveSampling(FITTED_DRAW, FITTED_ADAPTERS, replace(RULE, margins=margins))
    rows = torch.full((FITTED_ADAPTERS, FITTED_CLASSES), torch.nan)
    sampling.add(NetworkOutput(rows, torch.zeros(FITTED_ADAPTERS, 1)))
    assert sampling.next_draw is None

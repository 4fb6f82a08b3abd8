"""Margins fitted to synthetic trajectories, and the rounds that use them."""

from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from eulerlora.nn.runtime import ImageOutput
from eulerlora.sampling.adaptive import (
    MAX_AUTO_SAMPLES,
    ROUNDS,
    AdaptiveSampling,
    DecisionMargins,
    StoppingRule,
    log_odds,
    round_answers,
)
from eulerlora.sampling.decision_margins import (
    DET_ROUND,
    MARGIN_ROUNDS,
    MIN_IMAGES,
    TARGET_AGREEMENT,
    RoundAnswers,
    fit_margins,
    last_rounds,
    margins_at,
)
from eulerlora.settings import Draw

IMAGES, ADAPTERS, CLASSES = 400, 2, 3
DRAW = Draw(mode="stoch", seed=3)
RULE = StoppingRule(msp=0.5)


@pytest.fixture(scope="module")
def rounds() -> dict[int, Tensor]:
    """Probabilities (images, adapters, samples, classes) of the pass in det and of each round."""
    generator = Generator().manual_seed(0)
    logits = 2 * torch.randn(IMAGES, 1, 1, CLASSES, generator=generator).double()
    noise = torch.randn(IMAGES, ADAPTERS, MAX_AUTO_SAMPLES, CLASSES, generator=generator).double()
    det = logits.expand(-1, ADAPTERS, -1, -1).softmax(dim=-1)
    sampled = (logits + 0.2 * noise).softmax(dim=-1)
    return {DET_ROUND: det, **{samples: sampled[:, :, :samples] for samples in ROUNDS}}


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
    assert sum(ends) < 0.4 * MAX_AUTO_SAMPLES * IMAGES
    assert ends.count(DET_ROUND) > IMAGES / 3


def test_few_images_give_no_margins(answers: RoundAnswers) -> None:
    few = {samples: values[: MIN_IMAGES - 1] for samples, values in answers.items()}
    assert fit_margins(few, RULE, "synthetic") is None


def test_the_loop_ends_where_the_fit_says_and_answers_with_its_last_rounds(
    rounds: dict[int, Tensor], answers: RoundAnswers, margins: DecisionMargins
) -> None:
    rule = replace(RULE, margins=margins)
    expected = last_rounds(answers, rule)
    assert len(set(expected)) > 3
    for index in range(40):
        sampling = AdaptiveSampling(DRAW, ADAPTERS, rule)
        while (draw := sampling.next_draw) is not None:
            values = rounds[DET_ROUND] if draw.mode == "det" else rounds[MAX_AUTO_SAMPLES]
            rows = values[index, :, draw.first : draw.samples].flatten(0, 1)
            sampling.add(ImageOutput(rows.log(), rows.sum(dim=-1), torch.zeros(len(rows), 1)))
        sampled = expected[index] != DET_ROUND
        samples = expected[index] if sampled else 1
        assert (sampling.draw.mode == "stoch", sampling.draw.samples) == (sampled, samples)
        assert sampling.rows == ADAPTERS * (samples + sampled)
        torch.testing.assert_close(sampling.log_probabilities.exp(), rounds[expected[index]][index])


def test_an_unsettled_policy_keeps_the_rounds_going(
    answers: RoundAnswers, margins: DecisionMargins
) -> None:
    never = replace(RULE, margins=margins, policy=lambda _: False)
    assert set(last_rounds(answers, never)) == {MAX_AUTO_SAMPLES}


def test_nan_ends_the_rounds(margins: DecisionMargins) -> None:
    sampling = AdaptiveSampling(DRAW, ADAPTERS, replace(RULE, margins=margins))
    rows = torch.full((ADAPTERS, CLASSES), torch.nan)
    sampling.add(ImageOutput(rows, rows[:, 0], torch.zeros(ADAPTERS, 1)))
    assert sampling.next_draw is None

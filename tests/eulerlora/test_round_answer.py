"""Answers of rounds and what is settled about them, on hand-made probabilities."""

import math

import pytest
import torch

from eulerlora.sampling.adaptive import (
    MAX_ENTROPY_ERROR_NATS,
    RoundMargins,
    SettledDecisions,
    log_odds,
    round_answers,
)

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


def test_an_entropy_is_settled_in_rounds_that_know_it_well_enough() -> None:
    assert settled(entropy=MAX_ENTROPY_ERROR_NATS).entropy_is_settled
    assert not settled(entropy=MAX_ENTROPY_ERROR_NATS + 1e-6).entropy_is_settled


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

"""Curves and areas against naive twins, with ties."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from training.evaluation import selective
from training.evaluation.intervals import Floats, once
from training.evaluation.selective import Bools, RiskCoverage


def risk_coverage(scores: Floats, wrong: Bools) -> RiskCoverage:
    """Of the images themselves."""
    return selective.risk_coverage(scores, wrong, once(len(scores)))


def selective_metrics(curve: RiskCoverage) -> dict[str, float]:
    return {name: each.item() for name, each in selective.selective_metrics(curve).items()}


@pytest.fixture(params=range(4))
def answers(request: pytest.FixtureRequest) -> tuple[Floats, Bools]:
    """Scores with many ties, some of them at 1.0, and which answers are wrong."""
    random = np.random.default_rng(request.param)
    scores = np.round(random.random(237) * 15) / 15
    return scores, random.random(237) < 0.6 - 0.5 * scores


def test_the_curve_is_what_each_threshold_accepts(answers: tuple[Floats, Bools]) -> None:
    scores, wrong = answers
    curve = risk_coverage(scores, wrong)
    for index, threshold in enumerate(sorted(set(scores.tolist()), reverse=True)):
        accepted = scores >= threshold
        assert curve.coverage[0, index] == accepted.mean()
        assert curve.risk[0, index] == wrong[accepted].mean()
    assert curve.coverage[0, -1] == 1
    assert curve.risk[0, -1] == wrong.mean()
    assert curve.accepted.shape == (1, index + 1)


def test_the_augrc_has_its_closed_form(answers: tuple[Floats, Bools]) -> None:
    scores, wrong = answers
    error = wrong.mean()
    separation = roc_auc_score(~wrong, scores)
    found = selective_metrics(risk_coverage(scores, wrong))
    assert found["augrc"] == pytest.approx((1 - separation) * error * (1 - error) + error**2 / 2)


def test_the_augrc_is_the_chance_that_a_random_threshold_accepts_a_random_error(
    answers: tuple[Floats, Bools],
) -> None:
    """Of two images drawn at random, the first is wrong and the second not more confident."""
    scores, wrong = answers
    pairs = [
        0.5 if other == mine else float(other < mine)
        for mine, is_wrong in zip(scores.tolist(), wrong.tolist(), strict=True)
        for other in scores.tolist()
        if is_wrong
    ]
    found = selective_metrics(risk_coverage(scores, wrong))
    assert found["augrc"] == pytest.approx(sum(pairs) / len(scores) ** 2)


@pytest.mark.parametrize("seed", range(6))
def test_the_areas_are_means_over_all_orders_of_tied_images(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(0, 3, 7) / 2
    wrong = random.random(7) < 0.5
    aurcs, augrcs = [], []
    for order in permutations(range(7)):
        if all(scores[a] >= scores[b] for a, b in pairwise(order)):
            errors = np.cumsum(wrong[list(order)])
            aurcs.append(np.mean(errors / np.arange(1, 8)))
            augrcs.append(sum(errors[:-1] / 7**2) + errors[-1] / (2 * 7**2))
    found = selective_metrics(risk_coverage(scores, wrong))
    assert found["aurc"] == pytest.approx(np.mean(aurcs))
    assert found["augrc"] == pytest.approx(np.mean(augrcs))


def test_one_tie_of_all_images_has_the_risk_of_all_everywhere() -> None:
    found = selective_metrics(risk_coverage(np.ones(8), np.arange(8) < 2))
    assert found == {"aurc": 0.25, "augrc": 0.125}


def test_no_error_leaves_no_area() -> None:
    curve = risk_coverage(np.array([0.9, 0.5, 0.7]), np.zeros(3, dtype=bool))
    assert selective_metrics(curve) == {"aurc": 0.0, "augrc": 0.0}


def test_an_image_that_counts_twice_is_two_images(answers: tuple[Floats, Bools]) -> None:
    scores, wrong = answers
    weights = np.random.default_rng(1).integers(0, 3, (8, len(scores)))
    curves = selective.risk_coverage(scores, wrong, weights.astype(float))
    found = selective.selective_metrics(curves)
    for row, times in enumerate(weights):
        twin = selective_metrics(risk_coverage(np.repeat(scores, times), np.repeat(wrong, times)))
        assert {name: each[row] for name, each in found.items()} == pytest.approx(twin)

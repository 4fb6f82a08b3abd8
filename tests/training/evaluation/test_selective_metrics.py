"""Risk-coverage curves and their areas against naive references, with ties."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from training.evaluation import metrics
from training.evaluation.intervals import Bools, Floats, unit_weights
from training.evaluation.metrics import RiskCoverage, sums_by_score


def risk_coverage(scores: Floats, wrong: Bools) -> RiskCoverage:
    """Returns the curve with unit weights."""
    return metrics.risk_coverage(scores, wrong, unit_weights(len(scores)))


def selective_metrics(curve: RiskCoverage) -> dict[str, float]:
    return {name: value.item() for name, value in metrics.selective_metrics(curve).items()}


@pytest.fixture(params=range(4))
def predictions(request: pytest.FixtureRequest) -> tuple[Floats, Bools]:
    """Returns scores with many ties, some at 1.0, and whether the labels are wrong."""
    random = np.random.default_rng(request.param)
    scores = np.round(random.random(237) * 15) / 15
    return scores, random.random(237) < 0.6 - 0.5 * scores


def test_the_curve_has_coverage_and_risk_of_every_threshold(
    predictions: tuple[Floats, Bools],
) -> None:
    scores, wrong = predictions
    curve = risk_coverage(scores, wrong)
    for index, threshold in enumerate(sorted(set(scores.tolist()), reverse=True)):
        accepted = scores >= threshold
        assert curve.coverage[0, index] == accepted.mean()
        assert curve.risk[0, index] == wrong[accepted].mean()
    assert curve.coverage[0, -1] == 1
    assert curve.risk[0, -1] == wrong.mean()
    assert curve.accepted.shape == (1, index + 1)


def test_augrc_equals_its_closed_form(predictions: tuple[Floats, Bools]) -> None:
    scores, wrong = predictions
    error = wrong.mean()
    separation = roc_auc_score(~wrong, scores)
    actual = selective_metrics(risk_coverage(scores, wrong))
    assert actual["augrc"] == pytest.approx((1 - separation) * error * (1 - error) + error**2 / 2)


def test_augrc_is_the_probability_that_a_random_threshold_accepts_a_random_error(
    predictions: tuple[Floats, Bools],
) -> None:
    """Of two random images, the first is wrong and the second is not more confident."""
    scores, wrong = predictions
    pairs = [
        0.5 if other == score else float(other < score)
        for score, is_wrong in zip(scores.tolist(), wrong.tolist(), strict=True)
        for other in scores.tolist()
        if is_wrong
    ]
    actual = selective_metrics(risk_coverage(scores, wrong))
    assert actual["augrc"] == pytest.approx(sum(pairs) / len(scores) ** 2)


@pytest.mark.parametrize("seed", range(6))
def test_areas_are_means_over_all_orders_of_tied_images(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(0, 3, 7) / 2
    wrong = random.random(7) < 0.5
    aurcs, augrcs = [], []
    for order in permutations(range(7)):
        if all(scores[a] >= scores[b] for a, b in pairwise(order)):
            errors = np.cumsum(wrong[list(order)])
            aurcs.append(np.mean(errors / np.arange(1, 8)))
            augrcs.append(sum(errors[:-1] / 7**2) + errors[-1] / (2 * 7**2))
    actual = selective_metrics(risk_coverage(scores, wrong))
    assert actual["aurc"] == pytest.approx(np.mean(aurcs))
    assert actual["augrc"] == pytest.approx(np.mean(augrcs))


def test_one_tie_of_all_images_has_constant_risk() -> None:
    actual = selective_metrics(risk_coverage(np.ones(8), np.arange(8) < 2))
    assert actual == {"aurc": 0.25, "augrc": 0.125}


def test_areas_without_errors_are_zero() -> None:
    curve = risk_coverage(np.array([0.9, 0.5, 0.7]), np.zeros(3, dtype=bool))
    assert selective_metrics(curve) == {"aurc": 0.0, "augrc": 0.0}


def test_a_weight_of_two_equals_two_copies_of_an_image(predictions: tuple[Floats, Bools]) -> None:
    scores, wrong = predictions
    weights = np.random.default_rng(1).integers(0, 3, (8, len(scores)))
    curves = metrics.risk_coverage(scores, wrong, weights.astype(float))
    actual = metrics.selective_metrics(curves)
    for row, times in enumerate(weights):
        expected = selective_metrics(
            risk_coverage(np.repeat(scores, times), np.repeat(wrong, times))
        )
        assert {name: values[row] for name, values in actual.items()} == pytest.approx(expected)


def test_amounts_are_summed_by_score_in_descending_order() -> None:
    scores = np.array([0.5, 0.9, 0.5, 0.1])
    amounts = np.array([[1.0, 2, 4, 8], [1, 0, 0, 0]])
    assert sums_by_score(scores, amounts).tolist() == [[2, 5, 8], [0, 1, 0]]

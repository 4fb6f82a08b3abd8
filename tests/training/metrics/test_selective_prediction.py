"""Risk-coverage curves, their areas and rankings of errors against naive references, with ties."""

from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from eulerlora.scores.uncertainty import Uncertainty, summarise
from training.metrics import selective_prediction
from training.metrics.classification import sums_by_score
from training.metrics.intervals import Bools, Estimate, Floats, unit_weights
from training.metrics.selective_prediction import RiskCoverage, error_ranking


def risk_coverage(scores: Floats, wrong: Bools) -> RiskCoverage:
    """Returns the curve with unit weights."""
    return selective_prediction.risk_coverage(scores, wrong, unit_weights(len(scores)))


def selective_metrics(curve: RiskCoverage) -> dict[str, float]:
    return {
        name: value.item() for name, value in selective_prediction.selective_metrics(curve).items()
    }


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
    curves = selective_prediction.risk_coverage(scores, wrong, weights.astype(float))
    actual = selective_prediction.selective_metrics(curves)
    for row, times in enumerate(weights):
        expected = selective_metrics(
            risk_coverage(np.repeat(scores, times), np.repeat(wrong, times))
        )
        assert {name: values[row] for name, values in actual.items()} == pytest.approx(expected)


@pytest.fixture
def uncertain() -> tuple[Uncertainty, Bools]:
    """Returns 60 lesions with two equal images each; uncertain images are often wrong."""
    random = np.random.default_rng(2)
    logits = torch.from_numpy(random.normal(0, 2, (60, 1, 4)) + random.normal(0, 1, (60, 6, 4)))
    summary = summarise(logits.softmax(dim=-1).repeat_interleave(2, dim=0))
    wrong = random.random(60) < 1.2 - summary.msp.numpy()[::2]
    return summary, wrong.repeat(2)


def test_every_score_ranks_errors_by_its_own_order(uncertain: tuple[Uncertainty, Bools]) -> None:
    summary, wrong = uncertain
    ranking = error_ranking(summary, wrong, np.arange(120))
    scores = {
        "msp": 1 - summary.msp,
        "entropy": summary.entropy,
        "mutual_information": summary.mutual_information,
    }
    assert ranking.keys() == scores.keys()
    for name, values in scores.items():
        separation, area = ranking[name]["auroc"], ranking[name]["aurc"]
        assert separation is not None
        assert area is not None
        assert separation.value == pytest.approx(roc_auc_score(wrong, values.numpy()))
        risks = selective_metrics(risk_coverage(-values.numpy(), wrong))
        assert area.value == pytest.approx(risks["aurc"])
    assert len({ranking[name]["auroc"] for name in scores}) == 3


def test_images_of_one_lesion_widen_the_intervals_of_a_ranking(
    uncertain: tuple[Uncertainty, Bools],
) -> None:
    def width(estimate: Estimate | None) -> float:
        assert estimate is not None
        return estimate.high - estimate.low

    single = error_ranking(*uncertain, np.arange(120))["entropy"]
    lesions = error_ranking(*uncertain, np.arange(120) // 2)["entropy"]
    for name in ("auroc", "aurc"):
        assert width(lesions[name]) > 1.2 * width(single[name])


def test_without_errors_no_score_ranks_them(uncertain: tuple[Uncertainty, Bools]) -> None:
    summary, wrong = uncertain
    ranking = error_ranking(summary, np.zeros_like(wrong), np.arange(120))
    assert all(estimates["auroc"] is None for estimates in ranking.values())


def test_amounts_are_summed_by_score_in_descending_order() -> None:
    scores = np.array([0.5, 0.9, 0.5, 0.1])
    amounts = np.array([[1.0, 2, 4, 8], [1, 0, 0, 0]])
    assert sums_by_score(scores, amounts).tolist() == [[2, 5, 8], [0, 1, 0]]

"""Classification and OOD metrics against independent implementations.

Risk-coverage curves, their areas and rankings of errors against naive references, with ties.
"""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torchmetrics.functional import classification as reference
from torchmetrics.functional.classification import (
    binary_auroc,
    binary_average_precision,
    binary_sensitivity_at_specificity,
)

from eulerlora import summarise
from eulerlora.scores.uncertainty import variance_of
from training.evaluation.metrics import (
    calibration_bins,
    classification_metrics,
    classwise_calibration_error,
    error_ranking,
    ood_metrics,
    risk_coverage,
    selective_metrics,
    sensitivity_at_specificity,
    smooth_calibration_error,
)

CLASSES = 5


def once(images: int) -> np.ndarray:
    """Weights of one resample that has each image once."""
    return np.ones((1, images))


def of_labels(log_probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    values = classification_metrics(log_probabilities, labels.numpy(), once(len(labels)))
    return {name: value.item() for name, value in values.items()}


def of_scores(inside: Tensor, outside: Tensor) -> dict[str, float]:
    weights = once(len(inside) + len(outside))
    values = ood_metrics(inside.double().numpy(), outside.double().numpy(), weights)
    return {name: value.item() for name, value in values.items()}


@pytest.fixture(params=range(4))
def predictions(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor]:
    """Log-probabilities (n, trajectories, classes) and labels; no label is class 4."""
    generator = torch.Generator().manual_seed(request.param)
    logits = 4 * torch.randn(300, 6, CLASSES, generator=generator, dtype=torch.float64)
    logits[::10] = 100 * torch.eye(CLASSES, dtype=torch.float64)[0]  # confidence 1.0, and ties
    labels = torch.randint(0, CLASSES - 1, (300,), generator=generator)
    return logits.log_softmax(dim=-1), labels


def test_classification_metrics_agree_with_torchmetrics(predictions: tuple[Tensor, Tensor]) -> None:
    actual = of_labels(*predictions)
    mean, labels = predictions[0].exp().mean(dim=1), predictions[1]
    assert actual["accuracy"] == pytest.approx(
        float(reference.multiclass_accuracy(mean, labels, CLASSES, average="micro"))
    )
    # The macro mean of torchmetrics excludes absent classes; here they count as 0.
    by_class = reference.multiclass_f1_score(mean, labels, CLASSES, average="none")
    assert actual["macro_f1"] == pytest.approx(float(by_class.sum() / CLASSES), abs=1e-6)
    present = [float(binary_auroc(mean[:, k], (labels == k).long())) for k in range(CLASSES - 1)]
    assert actual["macro_auroc"] == pytest.approx(np.mean(present), abs=1e-6)
    assert actual["ece"] == pytest.approx(
        float(reference.multiclass_calibration_error(mean, labels, CLASSES, n_bins=10, norm="l1")),
        abs=1e-6,
    )


def test_the_classwise_error_is_the_mean_of_binary_errors(
    predictions: tuple[Tensor, Tensor],
) -> None:
    mean, labels = predictions[0].exp().mean(dim=1), predictions[1]
    expected = []
    for k in range(CLASSES):
        bins = np.ceil(mean[:, k].numpy() * 10).clip(1)
        gaps = (labels == k).double().numpy() - mean[:, k].numpy()
        expected.append(sum(abs(gaps[bins == b].sum()) for b in range(1, 11)) / 300)
    actual = classwise_calibration_error(mean.numpy(), labels.numpy(), once(300))
    assert actual == pytest.approx(np.mean(expected))


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_the_smooth_error_equals_the_bandwidth_at_which_a_reflected_gaussian_gives_it(
    sharpness: float,
) -> None:
    random = np.random.default_rng(0)
    logits = sharpness * random.normal(size=(400, 3))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = random.integers(0, 3, 400)
    repeated = random.integers(0, 4, 400)
    weights = np.stack([np.ones(400), repeated])
    errors = smooth_calibration_error(probabilities, labels, weights)
    points = (np.arange(1000) + 0.5) / 1000
    for error, times in zip(errors, weights, strict=True):
        smoothed = np.zeros(1000)
        for p, label, count in zip(probabilities, labels, times, strict=True):
            images = [2 * k + sign * p.max() for k in range(-4, 5) for sign in (-1, 1)]
            kernel = np.exp(-(((points[:, None] - images) / error) ** 2) / 2).sum(axis=1)
            smoothed += count * ((p.argmax() == label) - p.max()) * kernel
        smoothed /= error * math.sqrt(2 * math.pi) * times.sum()
        assert np.abs(smoothed).mean() == pytest.approx(error, abs=1e-4)


@pytest.mark.parametrize("specificity", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("levels", [5, 1000])  # with five, most scores are ties
def test_sensitivity_at_a_specificity_agrees_with_torchmetrics(
    specificity: float, levels: int
) -> None:
    generator = torch.Generator().manual_seed(levels)
    positive = torch.rand(200, generator=generator) < 0.2
    scores = (torch.rand(200, generator=generator) + 0.3 * positive).clamp_max(1)
    scores = (scores * levels).round() / levels
    expected, _ = binary_sensitivity_at_specificity(scores, positive.long(), specificity)
    found = sensitivity_at_specificity(
        specificity, scores.double().numpy(), positive.numpy(), once(200)
    )
    assert found.item() == pytest.approx(float(expected), abs=1e-6)


def test_sensitivity_counts_weights_and_needs_both_kinds() -> None:
    scores, positive = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False])
    weights = np.array([[1.0, 1, 1, 1], [1, 0, 3, 2], [1, 9, 1, 1], [0, 1, 0, 1], [1, 0, 1, 0]])
    found = sensitivity_at_specificity(0.5, scores, positive, weights)
    assert found[:3].tolist() == [1, 1, 0.5]
    assert np.isnan(found[3:]).all()


def test_metrics_of_the_mean_logits_are_those_of_one_trajectory_with_these_logits() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(200, 4, CLASSES, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (200,), generator=generator)
    actual = of_labels(logits.log_softmax(dim=-1), labels)
    mean = logits.mean(dim=1, keepdim=True)  # of the logits themselves, not their log-softmax
    expected = of_labels(mean.log_softmax(dim=-1), labels)
    for name in ("accuracy", "ece", "nll", "brier"):
        assert actual[f"{name}_mean_logits"] == pytest.approx(expected[name])
    assert abs(actual["ece_mean_logits"] - actual["ece"]) > 0.01


def test_nll_and_brier_agree_with_loops(predictions: tuple[Tensor, Tensor]) -> None:
    actual = of_labels(*predictions)
    nll = brier = 0.0
    for trajectories, label in zip(
        predictions[0].exp().tolist(), predictions[1].tolist(), strict=True
    ):
        mean = np.mean(trajectories, axis=0)
        nll -= math.log(mean[label])
        brier += sum((p - (k == label)) ** 2 for k, p in enumerate(mean))
    assert actual["nll"] == pytest.approx(nll / 300)
    assert actual["brier"] == pytest.approx(brier / 300)


def test_a_probability_of_zero_leaves_the_nll_finite() -> None:
    log_probabilities = torch.tensor([[[0.0, -2000.0]], [[-0.5, -0.9]]], dtype=torch.float64)
    assert of_labels(log_probabilities, torch.tensor([1, 0]))["nll"] == 1000.25


def test_calibration_bins_are_closed_above() -> None:
    # 0.5 is exactly an edge of linspace(0, 1, 11). It shares (0.4, 0.5] with 0.45, so that the
    # errors of the two images partly cancel.
    probabilities = np.array([[0.5, 0.3, 0.2], [0.45, 0.3, 0.25]])
    labels = np.array([0, 1])
    bins = calibration_bins(probabilities, labels)
    assert 0.5 in bins.edges
    assert bins.images.tolist() == [0, 0, 0, 0, 2, 0, 0, 0, 0, 0]
    error = of_labels(torch.from_numpy(probabilities).log()[:, None], torch.from_numpy(labels))[
        "ece"
    ]
    assert error == pytest.approx(abs(0.5 - 0.475))


def test_a_threshold_with_a_tpr_of_exactly_95_per_cent_is_sufficient() -> None:
    inside = torch.arange(1, 21)  # 19 of 20 are above 1.5
    assert of_scores(inside, torch.tensor([1.5]))["fpr_at_95_tpr"] == 0.0
    assert of_scores(inside, torch.tensor([2.5]))["fpr_at_95_tpr"] == 1.0


@pytest.mark.parametrize("seed", range(4))
def test_ood_metrics_agree_with_torchmetrics(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inside = (torch.rand(211, generator=generator).double() * 20).round() / 20  # many ties
    outside = (torch.rand(103, generator=generator).double() ** 2 * 20).round() / 20
    actual = of_scores(inside, outside)
    scores = torch.cat([inside, outside])
    positive = torch.cat([torch.ones(211), torch.zeros(103)]).long()
    assert actual["auroc"] == pytest.approx(float(binary_auroc(scores, positive)), abs=1e-6)
    assert actual["auprc"] == pytest.approx(
        float(binary_average_precision(scores, positive)), abs=1e-6
    )
    lowest_fpr = min(
        float((outside >= threshold).double().mean())
        for threshold in scores.unique()
        if float((inside >= threshold).double().mean()) >= 0.95
    )
    assert actual["fpr_at_95_tpr"] == lowest_fpr


def test_ood_metrics_of_a_resample_without_in_distribution_images_are_nan() -> None:
    scores, weights = np.array([0.1, 0.2]), np.array([[0.0, 0.0, 1.0, 1.0]])
    values = ood_metrics(scores, scores, weights)
    assert all(np.isnan(value.item()) for value in values.values())


@pytest.mark.parametrize("seed", range(3))
def test_a_weight_of_two_equals_two_copies_of_an_image(
    predictions: tuple[Tensor, Tensor], seed: int
) -> None:
    random = np.random.default_rng(seed)
    weights = random.integers(0, 4, (6, 300)).astype(float)
    log_probabilities, labels = predictions
    actual = classification_metrics(log_probabilities, labels.numpy(), weights)
    for row, times in enumerate(weights):
        drawn = np.repeat(np.arange(300), times.astype(int))
        expected = of_labels(log_probabilities[drawn], labels[drawn])
        assert {name: values[row] for name, values in actual.items()} == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(3))
def test_a_weight_of_two_equals_two_copies_in_ood_metrics(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = np.round(random.random(80) * 12) / 12
    weights = random.integers(0, 3, (6, 80)).astype(float)
    weights[:, [0, 50]] = 1
    actual = ood_metrics(scores[:50], scores[50:], weights)
    for row, times in enumerate(weights.astype(int)):
        inside, outside = (
            torch.from_numpy(np.repeat(scores[part], times[part]))
            for part in (slice(50), slice(50, None))
        )
        expected = of_scores(inside, outside)
        assert {name: values[row] for name, values in actual.items()} == pytest.approx(expected)


def test_auroc_without_negatives_is_nan() -> None:
    probabilities = torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]]])
    assert math.isnan(of_labels(probabilities.log(), torch.tensor([1, 1]))["macro_auroc"])


def areas(scores: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    values = selective_metrics(risk_coverage(scores, wrong, once(len(scores))))
    return {name: value.item() for name, value in values.items()}


@pytest.fixture(params=range(4))
def ranked(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray]:
    """Scores with many ties, some at 1.0, and whether the labels are wrong."""
    random = np.random.default_rng(request.param)
    scores = np.round(random.random(237) * 15) / 15
    return scores, random.random(237) < 0.6 - 0.5 * scores


def test_the_curve_has_coverage_and_risk_of_every_threshold(
    ranked: tuple[np.ndarray, np.ndarray],
) -> None:
    scores, wrong = ranked
    curve = risk_coverage(scores, wrong, once(len(scores)))
    for index, threshold in enumerate(sorted(set(scores.tolist()), reverse=True)):
        accepted = scores >= threshold
        assert curve.coverage[0, index] == accepted.mean()
        assert curve.risk[0, index] == wrong[accepted].mean()
    assert curve.coverage[0, -1] == 1
    assert curve.risk[0, -1] == wrong.mean()
    assert curve.accepted.shape == (1, index + 1)


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
    actual = areas(scores, wrong)
    assert actual["aurc"] == pytest.approx(np.mean(aurcs))
    assert actual["augrc"] == pytest.approx(np.mean(augrcs))


def test_every_score_ranks_errors_by_its_own_order() -> None:
    """Of 60 lesions with two equal images each; uncertain images are often wrong."""
    random = np.random.default_rng(2)
    logits = torch.from_numpy(random.normal(0, 2, (60, 1, 4)) + random.normal(0, 1, (60, 6, 4)))
    probabilities = logits.softmax(dim=-1).repeat_interleave(2, dim=0)
    summary = summarise(probabilities)
    one_view = torch.zeros(120, 6, 1, dtype=torch.int64)
    variance = variance_of(probabilities.unsqueeze(2), one_view)
    wrong = (random.random(60) < 1.2 - summary.msp.numpy()[::2]).repeat(2)
    ranking = error_ranking(summary, variance, wrong, np.arange(120))
    scores = {
        "msp": 1 - summary.msp,
        "entropy": summary.entropy,
        "mutual_information": summary.mutual_information,
        "between_adapters": variance.between_adapters,
    }
    assert ranking.keys() == scores.keys()
    for name, values in scores.items():
        separation, area = ranking[name]["auroc"], ranking[name]["aurc"]
        assert separation.value == pytest.approx(roc_auc_score(wrong, values.numpy()))
        risks = areas(-values.numpy(), wrong)
        assert area.value == pytest.approx(risks["aurc"])
    assert len({ranking[name]["auroc"] for name in scores}) == 4

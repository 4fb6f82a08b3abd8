"""Each against an independent implementation, with ties and absent classes."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torchmetrics.functional import classification as twin
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

from training.evaluation import metrics
from training.evaluation.intervals import once
from training.evaluation.metrics import calibration_bins, calibration_error, macro_auroc

CLASSES = 5


def classification_metrics(log_probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Of the images themselves."""
    weights = once(len(labels))
    found = metrics.classification_metrics(log_probabilities, labels.numpy(), weights)
    return {name: each.item() for name, each in found.items()}


def ood_metrics(inside: Tensor, outside: Tensor) -> dict[str, float]:
    """Of the images themselves."""
    weights = once(len(inside) + len(outside))
    found = metrics.ood_metrics(inside.double().numpy(), outside.double().numpy(), weights)
    return {name: each.item() for name, each in found.items()}


@pytest.fixture(params=range(4))
def answers(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor]:
    """Log-probabilities (n, trajectories, classes) and labels; class 4 is never right."""
    generator = torch.Generator().manual_seed(request.param)
    logits = 4 * torch.randn(300, 6, CLASSES, generator=generator, dtype=torch.float64)
    logits[::10] = 100 * torch.eye(CLASSES, dtype=torch.float64)[0]  # confidence 1.0, and ties
    labels = torch.randint(0, CLASSES - 1, (300,), generator=generator)
    return logits.log_softmax(dim=-1), labels


def test_classification_metrics_agree_with_torchmetrics(answers: tuple[Tensor, Tensor]) -> None:
    found = classification_metrics(*answers)
    mean, labels = answers[0].exp().mean(dim=1), answers[1]
    assert found["accuracy"] == pytest.approx(
        float(twin.multiclass_accuracy(mean, labels, CLASSES, average="micro"))
    )
    # torchmetrics leaves absent classes out of its macro mean; here they count 0.
    each = twin.multiclass_f1_score(mean, labels, CLASSES, average="none")
    assert found["macro_f1"] == pytest.approx(float(each.sum() / CLASSES), abs=1e-6)
    present = [float(binary_auroc(mean[:, k], (labels == k).long())) for k in range(CLASSES - 1)]
    assert found["macro_auroc"] == pytest.approx(np.mean(present), abs=1e-6)
    assert found["ece"] == pytest.approx(
        float(twin.multiclass_calibration_error(mean, labels, CLASSES, n_bins=10, norm="l1")),
        abs=1e-6,
    )


def test_nll_and_brier_agree_with_loops(answers: tuple[Tensor, Tensor]) -> None:
    found = classification_metrics(*answers)
    nll = brier = 0.0
    for trajectories, label in zip(answers[0].exp().tolist(), answers[1].tolist(), strict=True):
        mean = np.mean(trajectories, axis=0)
        nll -= math.log(mean[label])
        brier += sum((p - (k == label)) ** 2 for k, p in enumerate(mean))
    assert found["nll"] == pytest.approx(nll / 300)
    assert found["brier"] == pytest.approx(brier / 300)


def test_counted_metrics_agree_with_loops(answers: tuple[Tensor, Tensor]) -> None:
    found = classification_metrics(*answers)
    mean, labels = answers[0].exp().mean(dim=1), answers[1].tolist()
    predicted = mean.argmax(dim=-1).tolist()
    pairs = list(zip(predicted, labels, strict=True))
    assert found["accuracy"] == pytest.approx(sum(a == b for a, b in pairs) / 300)
    f1 = []
    for k in range(CLASSES):
        both = sum(a == b == k for a, b in pairs)
        f1.append(2 * both / max(1, predicted.count(k) + labels.count(k)))
    assert labels.count(CLASSES - 1) == 0
    assert found["macro_f1"] == pytest.approx(sum(f1) / CLASSES)


def test_the_calibration_error_agrees_with_a_loop_over_bins(
    answers: tuple[Tensor, Tensor],
) -> None:
    mean, labels = answers[0].exp().mean(dim=1), answers[1]
    confidence, predicted = mean.max(dim=-1)
    assert (confidence == 1).any()
    error = 0.0
    counts = []
    for tenth in range(10):
        inside = (confidence > tenth / 10) & (confidence <= (tenth + 1) / 10)
        counts.append(int(inside.sum()))
        if inside.any():
            right = (predicted == labels)[inside].double().mean()
            error += counts[-1] / 300 * abs(float(right - confidence[inside].mean()))
    assert classification_metrics(*answers)["ece"] == pytest.approx(error)
    assert calibration_bins(mean.numpy(), labels.numpy()).images.tolist() == counts


def test_a_probability_of_zero_leaves_the_nll_finite() -> None:
    log_probabilities = torch.tensor([[[0.0, -2000.0]], [[-0.5, -0.9]]], dtype=torch.float64)
    assert classification_metrics(log_probabilities, torch.tensor([1, 0]))["nll"] == 1000.25


def test_bins_of_the_calibration_error_are_closed_above() -> None:
    # 0.6 belongs to (0.5, 0.6], with 0.55; were it in the next bin the two errors would not cancel.
    probabilities = np.array([[0.6, 0.4], [0.55, 0.45]])
    labels = np.array([0, 1])
    assert calibration_error(probabilities, labels, once(2)) == pytest.approx(abs(0.5 - 0.575))


def test_a_perfect_and_a_perfectly_wrong_model_have_the_extreme_errors() -> None:
    certain = np.eye(3)
    assert calibration_error(certain, np.arange(3), once(3)) == 0
    assert calibration_error(certain, np.array([1, 2, 0]), once(3)) == 1


@pytest.mark.parametrize("seed", range(4))
def test_ood_metrics_agree_with_their_twins(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inside = (torch.rand(211, generator=generator).double() * 20).round() / 20  # many ties
    outside = (torch.rand(103, generator=generator).double() ** 2 * 20).round() / 20
    found = ood_metrics(inside, outside)
    scores = torch.cat([inside, outside])
    positive = torch.cat([torch.ones(211), torch.zeros(103)]).long()
    assert found["auroc"] == pytest.approx(float(binary_auroc(scores, positive)), abs=1e-6)
    assert found["auprc"] == pytest.approx(
        float(binary_average_precision(scores, positive)), abs=1e-6
    )
    least = min(
        float((outside >= threshold).double().mean())
        for threshold in scores.unique()
        if float((inside >= threshold).double().mean()) >= 0.95
    )
    assert found["fpr_at_95_tpr"] == least


@pytest.mark.parametrize("seed", range(4))
def test_ood_metrics_agree_with_loops(seed: int) -> None:
    random = np.random.default_rng(seed)
    inside = (np.round(random.random(61) * 10) / 10).tolist()
    outside = (np.round(random.random(47) ** 2 * 10) / 10).tolist()
    found = ood_metrics(torch.tensor(inside).double(), torch.tensor(outside).double())
    wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a in inside for b in outside]
    assert found["auroc"] == pytest.approx(sum(wins) / len(wins))
    precision, recall = 0.0, 0.0
    for threshold in sorted({*inside, *outside}, reverse=True):
        kept = sum(score >= threshold for score in inside)
        passed = sum(score >= threshold for score in outside)
        precision += (kept / 61 - recall) * kept / (kept + passed)
        recall = kept / 61
    assert found["auprc"] == pytest.approx(precision)


def test_separated_sets_have_perfect_ood_metrics() -> None:
    found = ood_metrics(torch.tensor([0.8, 0.9]), torch.tensor([0.1, 0.2, 0.3]))
    assert found == {"auroc": 1.0, "auprc": 1.0, "fpr_at_95_tpr": 0.0}


@pytest.mark.parametrize("seed", range(3))
def test_an_image_that_counts_twice_is_two_images(
    answers: tuple[Tensor, Tensor], seed: int
) -> None:
    random = np.random.default_rng(seed)
    weights = random.integers(0, 4, (6, 300)).astype(float)
    log_probabilities, labels = answers
    found = metrics.classification_metrics(log_probabilities, labels.numpy(), weights)
    for row, times in enumerate(weights):
        drawn = np.repeat(np.arange(300), times.astype(int))
        twin = classification_metrics(log_probabilities[drawn], labels[drawn])
        assert {name: each[row] for name, each in found.items()} == pytest.approx(twin)


@pytest.mark.parametrize("seed", range(3))
def test_an_image_that_counts_twice_is_two_for_ood_metrics_too(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = np.round(random.random(80) * 12) / 12
    weights = random.integers(0, 3, (6, 80)).astype(float)
    weights[:, [0, 50]] = 1
    found = metrics.ood_metrics(scores[:50], scores[50:], weights)
    for row, times in enumerate(weights.astype(int)):
        inside, outside = (
            torch.from_numpy(np.repeat(scores[part], times[part]))
            for part in (slice(50), slice(50, None))
        )
        twin = ood_metrics(inside, outside)
        assert {name: each[row] for name, each in found.items()} == pytest.approx(twin)


def test_a_weighted_auroc_is_scikit_learn_s() -> None:
    random = np.random.default_rng(0)
    scores, positive = np.round(random.random(90), 1), random.random(90) < 0.3
    weights = random.random((4, 90))
    for row, found in zip(weights, metrics.auroc(scores, positive, weights), strict=True):
        assert found == pytest.approx(roc_auc_score(positive, scores, sample_weight=row))


def test_an_auroc_wants_images_of_both_kinds() -> None:
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8]])
    assert np.isnan(macro_auroc(probabilities, np.array([1, 1]), once(2))).all()

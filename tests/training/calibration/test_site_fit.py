"""A temperature is that of the lowest NLL, and is used only if it helps other lesions.

Moved means follow a change of all features, and only if that lowers the threshold.
"""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from eulerlora.scores.ood_scores import FeatureDistance, fit_feature_statistics
from training.calibration.site_fit import fit_offset, moved
from training.calibration.temperature import at_temperature, fit_temperature, image_nll


def overconfident(lesions: int, factor: float) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities (n, 1, 3) of calibrated logits times `factor`, and labels."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(lesions, 3, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]
    return (factor * logits).log_softmax(dim=1).unsqueeze(1), labels


@pytest.mark.parametrize("factor", [3.0, 0.4])
def test_the_factor_of_calibrated_logits_is_found(factor: float) -> None:
    outputs, labels = overconfident(2000, factor)
    fit = fit_temperature(outputs, labels, np.arange(2000))
    assert fit.helps
    assert fit.temperature == pytest.approx(factor, rel=0.1)


def test_calibrated_probabilities_keep_their_temperature() -> None:
    outputs, labels = overconfident(100, 1.0)
    fit = fit_temperature(outputs, labels, np.arange(100))
    assert not fit.helps
    assert fit.temperature == 1


def test_copies_of_a_picture_add_no_lesion() -> None:
    outputs, labels = overconfident(60, 3.0)
    once = fit_temperature(outputs, labels, np.arange(60))
    times = torch.arange(60) % 4 + 1
    groups = torch.arange(60).repeat_interleave(times)
    often = fit_temperature(outputs[groups], labels[groups], groups.numpy())
    assert often.fitted == once.fitted


def test_nll_is_that_of_the_mean_probability() -> None:
    logits = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 1, 0])
    mean = (logits / 2.5).softmax(dim=-1).mean(dim=1)
    expected = F.nll_loss(mean.log(), labels, reduction="none")
    actual = image_nll(logits.log_softmax(dim=-1), labels, 2.5)
    assert actual == pytest.approx(expected.numpy())
    rescaled = at_temperature(logits.log_softmax(dim=-1), 2.5)
    assert torch.allclose(rescaled, (logits / 2.5).log_softmax(dim=-1))


CLASSES, WIDTH = 3, 4


def features_of(labels: Tensor, seed: int) -> Tensor:
    """Returns (n, WIDTH) features around a mean for each class."""
    noise = torch.randn(len(labels), WIDTH, generator=torch.Generator().manual_seed(seed))
    return noise + 5 * torch.eye(CLASSES, WIDTH)[labels]


@pytest.fixture(scope="module")
def distance() -> FeatureDistance:
    labels = torch.arange(600) % CLASSES
    return FeatureDistance(fit_feature_statistics(features_of(labels, 0), labels, CLASSES))


@pytest.fixture(scope="module")
def labels() -> Tensor:
    return torch.arange(200) % CLASSES


def test_means_follow_a_common_change(distance: FeatureDistance, labels: Tensor) -> None:
    change = torch.tensor([4.0, 0, -3, 6])
    local = features_of(labels, 1) + change
    offset = fit_offset(distance, local, labels, np.arange(200))
    assert offset.helps
    assert torch.allclose(offset.offset, change, atol=0.3)
    new = FeatureDistance(moved(distance.statistics, offset.offset))
    others = features_of(labels, 2) + change
    assert (new(others) <= offset.threshold_after).double().mean() > 0.9
    unchanged = (distance(local) <= offset.threshold_after).double().mean()
    assert unchanged < 0.2


def test_means_stay_if_one_picture_would_move_them(
    distance: FeatureDistance, labels: Tensor
) -> None:
    local = features_of(labels, 3)
    local[0] += 1000
    offset = fit_offset(distance, local, labels, np.arange(200))
    assert not offset.helps
    assert "not moved" in offset.summary


def test_the_offset_of_a_picture_does_not_depend_on_its_group(
    distance: FeatureDistance, labels: Tensor
) -> None:
    local, groups = features_of(labels, 1), np.arange(200) // 4
    offset = fit_offset(distance, local, labels, groups)
    changed = local.clone()
    changed[:4] += 100  # the first group
    assert torch.equal(
        fit_offset(distance, changed, labels, groups).by_picture[:4], offset.by_picture[:4]
    )
